package seal

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Reasons of the errors that this package makes.
const (
	// ReasonUnknownKey: the keyring lacks the key that something was sealed
	// with.
	ReasonUnknownKey = "SEAL_KEY_UNKNOWN"
	// ReasonDamaged: sealed bytes were changed, or moved to another place.
	ReasonDamaged = "SEAL_DAMAGED"
	// ReasonBadKeyring: a keyring cannot be read.
	ReasonBadKeyring = "SEAL_KEYRING_INVALID"
)

// format is the first byte of everything that is sealed.
const format = 1

const (
	headerLen = 1 + idLen + chacha20poly1305.NonceSizeX
	// Overhead is how much longer sealed bytes are than the plaintext.
	Overhead = headerLen + chacha20poly1305.Overhead
	// maxKeys bounds a keyring; years of monthly rotation fit.
	maxKeys = 256
)

// Keyring is the seal keys that one server knows, the newest last. The newest
// seals.
type Keyring struct {
	keys []*key
}

// New makes a keyring with one new key.
func New() (*Keyring, error) {
	secret, err := NewSecret()
	if err != nil {
		return nil, err
	}
	return new(Keyring).With(secret)
}

// With returns a keyring in which the key of secret is the newest.
func (r *Keyring) With(secret []byte) (*Keyring, error) {
	k, err := newKey(slices.Clone(secret))
	if err != nil {
		return nil, err
	}
	keys := slices.DeleteFunc(slices.Clone(r.keys), func(o *key) bool { return o.rawID == k.rawID })
	if len(keys) >= maxKeys {
		return nil, badKeyring("a keyring holds at most %d keys", maxKeys)
	}
	return &Keyring{keys: append(keys, k)}, nil
}

// Use returns a keyring in which the key of that id, which must be there, is
// the newest.
func (r *Keyring) Use(id string) (*Keyring, error) {
	k := r.find(id)
	if k == nil {
		return nil, unknownKey(id)
	}
	return r.With(k.secret)
}

// Including returns a keyring that has the keys of other too, before its own.
func (r *Keyring) Including(other *Keyring) (*Keyring, error) {
	var missing []*key
	for _, k := range other.keys {
		if r.find(k.id()) == nil {
			missing = append(missing, k)
		}
	}
	if len(missing)+len(r.keys) > maxKeys {
		return nil, badKeyring("a keyring holds at most %d keys", maxKeys)
	}
	return &Keyring{keys: append(missing, r.keys...)}, nil
}

// Active returns the id of the key that seals.
func (r *Keyring) Active() string { return r.newest().id() }

// IDs lists the ids of all keys, the newest last.
func (r *Keyring) IDs() []string {
	ids := make([]string, len(r.keys))
	for i, k := range r.keys {
		ids[i] = k.id()
	}
	return ids
}

// Has tells whether the key of that id is there.
func (r *Keyring) Has(id string) bool { return r.find(id) != nil }

func (r *Keyring) newest() *key { return r.keys[len(r.keys)-1] }

func (r *Keyring) find(id string) *key {
	for _, k := range r.keys {
		if k.id() == id {
			return k
		}
	}
	return nil
}

// Seal encrypts plaintext under the newest key.
func (r *Keyring) Seal(context string, plaintext []byte) []byte {
	k := r.newest()
	out := make([]byte, 0, len(plaintext)+Overhead)
	out = append(out, format)
	out = append(out, k.rawID[:]...)
	nonce := k.nonce(context, plaintext)
	out = append(out, nonce...)
	return k.aead.Seal(out, nonce, plaintext, associated(out[:1+idLen], context))
}

// Open decrypts what Seal made in the same context. The error is an
// [errs.Error] with ReasonUnknownKey or ReasonDamaged; it never shows any of
// the content.
func (r *Keyring) Open(context string, sealed []byte) ([]byte, error) {
	id, err := KeyID(sealed)
	if err != nil {
		return nil, err
	}
	k := r.find(id)
	if k == nil {
		return nil, unknownKey(id)
	}
	nonce := sealed[1+idLen : headerLen]
	plaintext, err := k.aead.Open(nil, nonce, sealed[headerLen:], associated(sealed[:1+idLen], context))
	if err != nil {
		return nil, damaged("what is sealed for %q does not open with key %s", context, id)
	}
	return plaintext, nil
}

// KeyID returns the id of the key that something was sealed with.
func KeyID(sealed []byte) (string, error) {
	if len(sealed) < Overhead || sealed[0] != format {
		return "", damaged("%d bytes are not of this form", len(sealed))
	}
	var k key
	copy(k.rawID[:], sealed[1:])
	return k.id(), nil
}

// Digest is a keyed hash, 32 bytes, for what is stored beside sealed data and
// must not serve to guess it. Its key is the oldest of the keyring, so that it
// stays the same when a newer key comes into use.
func (r *Keyring) Digest(data []byte) []byte {
	h := hmac.New(sha256.New, r.keys[0].digest)
	h.Write(data)
	return h.Sum(nil)
}

// associated is what is authenticated along: the header and the context.
func associated(header []byte, context string) []byte {
	return append(slices.Clip(slices.Clone(header)), context...)
}

const fileHead = "# Seal keys of a trivet cluster, the newest last. Whoever has them and a copy of the\n" +
	"# cluster's state can read the secrets in it.\n"

// Encode returns the keyring in the form of its file.
func (r *Keyring) Encode() []byte {
	var b bytes.Buffer
	b.WriteString(fileHead)
	for _, k := range r.keys {
		fmt.Fprintf(&b, "%s %s\n", k.id(), base64.StdEncoding.EncodeToString(k.secret))
	}
	return b.Bytes()
}

// Decode reads what Encode wrote.
func Decode(data []byte) (*Keyring, error) {
	r := new(Keyring)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; lines.Scan(); number++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		id, encoded, _ := strings.Cut(text, " ")
		secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
		if err != nil {
			return nil, badKeyring("line %d is not a key", number)
		}
		next, err := r.With(secret)
		if err != nil {
			return nil, badKeyring("line %d: %w", number, err)
		}
		if next.Active() != id {
			return nil, badKeyring("line %d: the key is not the one that its id %q names", number, id)
		}
		r = next
	}
	if err := lines.Err(); err != nil {
		return nil, badKeyring("%w", err)
	}
	if len(r.keys) == 0 {
		return nil, badKeyring("it holds no key")
	}
	return r, nil
}

func unknownKey(id string) *errs.Error {
	return errs.New(codes.FailedPrecondition, ReasonUnknownKey, "this server has no seal key %s", id).
		WithHint("all servers of a cluster need the same keyring: copy the file keyring from the data directory of one that has the key")
}

func damaged(format string, args ...any) *errs.Error {
	return errs.New(codes.DataLoss, ReasonDamaged, "open sealed data: "+format, args...).
		WithHint("it was changed, or belongs somewhere else; restore the state from a snapshot")
}

func badKeyring(format string, args ...any) *errs.Error {
	return errs.New(codes.FailedPrecondition, ReasonBadKeyring, "read the keyring: "+format, args...).
		WithHint("copy the file keyring of another server's bundle or data directory")
}
