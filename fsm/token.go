package fsm

import (
	"crypto/sha256"
	"crypto/subtle"
	"path"
	"slices"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Bounds of an enrolment token. Its row keeps a digest per use.
const (
	maxTokenUses  = 10_000
	maxTokenText  = 256
	maxKeyDigest  = 64
	secretHashLen = sha256.Size
)

func (t *tx) createToken(op *commandv1.CreateToken) *commandv1.Result {
	if res := t.checkToken(op); res != nil {
		return res
	}
	if _, ok := t.work.tokens.get(op.GetId()); ok {
		return refuse(commandv1.Code_CODE_ALREADY_EXISTS, ReasonTokenExists,
			"token %q already exists", op.GetId())
	}
	if t.since2() {
		t.dropExpiredTokens()
		if limit := t.work.limits.GetTokens(); uint32(t.work.tokens.rows.Len()) >= limit {
			return overLimit(ReasonLimitTokens, "tokens", "there are %d tokens, which is all there may be", limit)
		}
	}
	row := &commandv1.TokenRow{
		Id:         op.GetId(),
		SecretHash: op.GetSecretHash(),
		Role:       op.GetRole(),
		NameGlob:   op.GetNameGlob(),
		UsesLeft:   op.GetUses(),
		ExpiresAt:  op.GetExpiresAt(),
		CreatedBy:  t.cmd.GetIdentity(),
		CreatedAt:  t.now(),
	}
	put(t, &t.work.tokens, row)
	return withToken(row)
}

// tokenGrace is how long a token is remembered after its end: whoever used it
// may ask for the same certificate again.
const tokenGrace = 24 * 60 * 60 * 1e9

// dropExpiredTokens forgets some of the tokens that nobody can ask about any
// more.
func (t *tx) dropExpiredTokens() {
	var gone []string
	for row := range t.work.Tokens {
		if row.GetExpiresAt()+tokenGrace < t.now() {
			gone = append(gone, row.GetId())
		}
		if len(gone) == idleDropsPerCommand {
			break
		}
	}
	for _, id := range gone {
		drop(t, &t.work.tokens, id)
	}
}

func (t *tx) checkToken(op *commandv1.CreateToken) *commandv1.Result {
	switch {
	case op.GetId() == "":
		return invalid("token id must not be empty")
	case len(op.GetId()) > maxTokenText || len(op.GetRole()) > maxTokenText ||
		len(op.GetNameGlob()) > maxTokenText:
		return invalid("token id, role and name glob must not be longer than %d bytes", maxTokenText)
	case len(op.GetSecretHash()) != secretHashLen:
		return invalid("token secret hash must be %d bytes", secretHashLen)
	case op.GetRole() == "":
		return invalid("token role must not be empty")
	case op.GetNameGlob() == "":
		return hinted(invalid("token name glob must not be empty"), `"*" allows every name`)
	case op.GetUses() == 0 || op.GetUses() > maxTokenUses:
		return invalid("token uses must be between 1 and %d", maxTokenUses)
	case op.GetExpiresAt() <= t.now():
		return invalid("token would have expired already")
	}
	if _, err := path.Match(op.GetNameGlob(), ""); err != nil {
		return invalid("token name glob %q is malformed", op.GetNameGlob())
	}
	return nil
}

// consumeToken takes one use of a token for one key and one name. The same key
// and name get the same answer again, so that a lost answer costs no use; also
// for a while after the token's end, for a winner that asks late.
func (t *tx) consumeToken(op *commandv1.ConsumeToken) *commandv1.Result {
	denied := func(reason, format string, args ...any) *commandv1.Result {
		return hinted(refuse(commandv1.Code_CODE_PERMISSION_DENIED, reason, format, args...),
			"ask an operator for a new token")
	}
	row, ok := t.work.tokens.get(op.GetId())
	// The same answer for an unknown token and a wrong secret: a guess learns
	// nothing.
	if !ok || subtle.ConstantTimeCompare(row.GetSecretHash(), op.GetSecretHash()) != 1 {
		return denied(ReasonTokenInvalid, "token is not valid")
	}
	matches, err := path.Match(row.GetNameGlob(), op.GetName())
	expired := row.GetExpiresAt() <= t.now()
	switch {
	case row.GetRevoked():
		return denied(ReasonTokenRevoked, "token %q was revoked", row.GetId())
	case expired && !t.since2():
		return denied(ReasonTokenExpired, "token %q has expired", row.GetId())
	case row.GetRole() != op.GetRole():
		return denied(ReasonTokenInvalid, "token %q is for role %q, not %q",
			row.GetId(), row.GetRole(), op.GetRole())
	case err != nil || !matches:
		return denied(ReasonTokenInvalid, "token %q does not allow the name %q",
			row.GetId(), op.GetName())
	case len(op.GetKeyDigest()) == 0 || len(op.GetKeyDigest()) > maxKeyDigest:
		return invalid("key digest must be 1 to %d bytes", maxKeyDigest)
	}
	use := useDigest(op.GetKeyDigest(), op.GetName())
	if slices.ContainsFunc(row.GetKeyDigests(), func(d []byte) bool {
		return slices.Equal(d, use)
	}) {
		t.record = recordAlways // another certificate will be made
		return withToken(row)
	}
	if expired {
		return denied(ReasonTokenExpired, "token %q has expired", row.GetId())
	}
	if row.GetUsesLeft() == 0 {
		return denied(ReasonTokenUsed, "token %q was used by another key", row.GetId())
	}
	row = edit(row)
	row.UsesLeft--
	row.KeyDigests = append(slices.Clone(row.GetKeyDigests()), use)
	put(t, &t.work.tokens, row)
	return withToken(row)
}

// useDigest binds the key to the name it was enrolled for: the same key under
// another name is another use.
func useDigest(key []byte, name string) []byte {
	h := sha256.New()
	h.Write([]byte{byte(len(key))})
	h.Write(key)
	h.Write([]byte(name))
	return h.Sum(nil)
}

func (t *tx) revokeToken(op *commandv1.RevokeToken) *commandv1.Result {
	row, ok := t.work.tokens.get(op.GetId())
	if !ok {
		return refuse(commandv1.Code_CODE_NOT_FOUND, ReasonTokenNotFound,
			"token %q not found", op.GetId())
	}
	if row.GetRevoked() {
		return withToken(row)
	}
	row = edit(row)
	row.Revoked = true
	put(t, &t.work.tokens, row)
	return withToken(row)
}
