package fsm

import (
	"strings"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Roles that the state machine treats in a way of their own.
const (
	roleOperator = "operator"
	roleNode     = "node"
	roleServer   = "server"
)

// roleOf splits a SPIFFE URI, spiffe://<cluster>/<role>/<name>. Both parts are
// empty when the URI has another form.
func roleOf(uri string) (role, name string) {
	rest, ok := strings.CutPrefix(uri, "spiffe://")
	if !ok {
		return "", ""
	}
	cluster, path, _ := strings.Cut(rest, "/")
	role, name, ok = strings.Cut(path, "/")
	if !ok || cluster == "" || role == "" || name == "" {
		return "", ""
	}
	return role, name
}

// mayActFor tells whether the command's caller may act for a session of the
// given identity. Commands without an identity are the leader's own.
func (t *tx) mayActFor(identity string) bool {
	caller := t.cmd.GetIdentity()
	return caller == "" || caller == identity
}

func notYours(sessionID string) *commandv1.Result {
	return refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonSessionNotYours,
		"session %q belongs to another identity", sessionID)
}

// actsAsNode refuses a node's identity that speaks for another node.
func (t *tx) actsAsNode(name string) *commandv1.Result {
	if role, own := roleOf(t.cmd.GetIdentity()); role == roleNode && own != name {
		return refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonNodeNotYours,
			"node %q may not speak for node %q", own, name)
	}
	return nil
}

func (t *tx) putIdentity(op *commandv1.PutIdentity) *commandv1.Result {
	if op.GetUri() == "" {
		return invalid("identity must not be empty")
	}
	if t.since2() {
		if res := tooLong("identity", op.GetUri(), "reason", op.GetReason()); res != nil {
			return res
		}
	}
	put(t, &t.work.identities, &commandv1.IdentityRow{
		Uri: op.GetUri(), Denied: op.GetDenied(), Reason: op.GetReason(), ChangedAt: t.now(),
	})
	return done()
}
