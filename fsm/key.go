package fsm

import (
	"slices"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Bounds of keys. A sealed key has some hundred bytes, a certificate chain a
// few thousand.
const (
	maxKeys     = 1000
	maxKeyText  = 256
	maxKeyBytes = 64 << 10
)

// mayKeepKeys tells whether the caller may change keys: the leader itself,
// servers and operators.
func (t *tx) mayKeepKeys() bool {
	role, _ := roleOf(t.cmd.GetIdentity())
	return t.cmd.GetIdentity() == "" || role == roleServer || role == roleOperator
}

func keysDenied() *commandv1.Result {
	return refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonKeyDenied, "only servers and operators may change keys")
}

func keyInUse(row *commandv1.KeyRow) *commandv1.Result {
	return hinted(refuse(commandv1.Code_CODE_FAILED_PRECONDITION, ReasonKeyActive, "key %q is in use", row.GetId()),
		"make another key of kind %q active first", row.GetKind())
}

// putKey stores a key. At most one of a kind is active: making one so retires
// the others, which stay for what they have signed or sealed.
func (t *tx) putKey(op *commandv1.PutKey) *commandv1.Result {
	key := op.GetKey()
	switch {
	case !t.mayKeepKeys():
		return keysDenied()
	case key.GetId() == "" || key.GetKind() == "":
		return invalid("key id and kind must not be empty")
	case len(key.GetId()) > maxKeyText || len(key.GetKind()) > maxKeyText || len(key.GetSealKeyId()) > maxKeyText:
		return invalid("key id, kind and seal key id must not be longer than %d bytes", maxKeyText)
	case len(key.GetSealed()) > maxKeyBytes || len(key.GetPublic()) > maxKeyBytes:
		return invalid("a key must not be longer than %d bytes", maxKeyBytes)
	}
	old, exists := t.work.keys.get(key.GetId())
	if res := compareRevision("key", key.GetId(), old.GetModifyRevision(), op.IfModifyRevision); res != nil {
		return res
	}
	switch {
	case exists && old.GetKind() != key.GetKind():
		return invalid("key %q is of kind %q, not %q", key.GetId(), old.GetKind(), key.GetKind())
	case old.GetActive() && !key.GetActive():
		return keyInUse(old)
	case !exists && t.work.keys.rows.Len() >= maxKeys:
		return refuse(commandv1.Code_CODE_RESOURCE_EXHAUSTED, ReasonLimitKeys, "there are %d keys already", maxKeys)
	}
	row := edit(key)
	row.CreatedAt = t.now()
	if exists {
		row.CreatedAt = old.GetCreatedAt()
	}
	if row.GetActive() {
		for _, other := range slices.Collect(t.work.Keys) {
			if other.GetKind() == row.GetKind() && other.GetId() != row.GetId() && other.GetActive() {
				other = edit(other)
				other.Active = false
				put(t, &t.work.keys, other)
			}
		}
	}
	put(t, &t.work.keys, row)
	return withKey(row)
}

func (t *tx) deleteKey(op *commandv1.DeleteKey) *commandv1.Result {
	if !t.mayKeepKeys() {
		return keysDenied()
	}
	row, ok := t.work.keys.get(op.GetId())
	if res := compareRevision("key", op.GetId(), row.GetModifyRevision(), op.IfModifyRevision); res != nil {
		return res
	}
	if !ok {
		return done()
	}
	if row.GetActive() {
		return keyInUse(row)
	}
	drop(t, &t.work.keys, op.GetId())
	return done()
}

// compareRevision is the compare half of compare-and-set for rows that are not
// configuration.
func compareRevision(what, key string, have uint64, want *uint64) *commandv1.Result {
	if want == nil || *want == have {
		return nil
	}
	return hinted(refuse(commandv1.Code_CODE_ABORTED, ReasonConflict,
		"%s %q was changed: modify revision is %d, not %d", what, key, have, *want),
		"read it again and repeat the change on what it holds now")
}
