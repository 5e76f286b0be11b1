package enroll

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// ReasonTokenMalformed: a text is not a token.
const ReasonTokenMalformed = "TOKEN_MALFORMED"

const (
	tokenPrefix = "trivet1"
	idBytes     = 5
	secretBytes = 16 // 128 bits: not to be guessed
)

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Token lets its holder enrol. As text it is
// trivet1.<id>.<secret>.<hash of the root's key>.
type Token struct {
	// ID names it in lists and logs.
	ID string
	// Secret is what only the holder knows; 16 bytes.
	Secret []byte
	// RootHash is pki.RootHash of the cluster's root.
	RootHash []byte
}

// NewToken draws a token for the cluster of that root.
func NewToken(rootHash []byte) (Token, error) {
	raw := make([]byte, idBytes+secretBytes)
	if _, err := rand.Read(raw); err != nil {
		return Token{}, fmt.Errorf("draw a token: %w", err)
	}
	return Token{ID: base32Lower.EncodeToString(raw[:idBytes]), Secret: raw[idBytes:], RootHash: rootHash}, nil
}

// String is the whole token, secret included: for its holder only.
func (t Token) String() string {
	return strings.Join([]string{
		tokenPrefix, t.ID, base32Lower.EncodeToString(t.Secret), hex.EncodeToString(t.RootHash),
	}, ".")
}

// SecretHash is what the cluster knows of the secret.
func (t Token) SecretHash() []byte {
	sum := sha256.Sum256(t.Secret)
	return sum[:]
}

// ParseToken reads a token. Errors do not repeat what was read.
func ParseToken(text string) (Token, error) {
	bad := func(what string) error {
		return errs.New(codes.InvalidArgument, ReasonTokenMalformed, "the token %s", what).
			WithHint("copy it whole, as `trivet token create` printed it: trivet1.ID.SECRET.HASH")
	}
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != tokenPrefix {
		return Token{}, bad("does not have four parts of which the first is " + tokenPrefix)
	}
	if id, err := base32Lower.DecodeString(parts[1]); err != nil || len(id) != idBytes {
		return Token{}, bad("has a damaged id")
	}
	secret, err := base32Lower.DecodeString(parts[2])
	if err != nil || len(secret) != secretBytes {
		return Token{}, bad("has a damaged secret")
	}
	hash, err := hex.DecodeString(parts[3])
	if err != nil || len(hash) != pki.RootHashLen {
		return Token{}, bad("has a damaged hash")
	}
	return Token{ID: parts[1], Secret: secret, RootHash: hash}, nil
}
