package fsm

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Sizes of the audit's rings, in records. Security and human actions are kept
// long enough to be exported at leisure; sessions come and go by the thousand.
const (
	auditLong  = 10_000
	auditShort = 2_000
)

// maxAuditText bounds each text of a record.
const maxAuditText = 1024

var auditRing = map[commandv1.AuditClass]uint64{
	commandv1.AuditClass_AUDIT_CLASS_SECURITY:  auditLong,
	commandv1.AuditClass_AUDIT_CLASS_ACTION:    auditLong,
	commandv1.AuditClass_AUDIT_CLASS_LIFECYCLE: auditShort,
}

func auditKey(class commandv1.AuditClass, number uint64) string {
	return string(rune('0'+class)) + bigEndian(number)
}

var auditKind = &kind[*commandv1.AuditRow]{
	id:    TableAudit,
	tag:   byte(TableAudit),
	fresh: func() *commandv1.AuditRow { return new(commandv1.AuditRow) },
	key:   func(row *commandv1.AuditRow) string { return auditKey(row.GetClass(), row.GetNumber()) },
	encode: func(e *encoder, row *commandv1.AuditRow) {
		// The hash covers the rest, and is covered by the next record's.
		e.bytes(row.GetHash())
	},
	stamp: func(row *commandv1.AuditRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
	revisions: func(row *commandv1.AuditRow) (create, modify uint64) {
		return row.GetCreateRevision(), row.GetModifyRevision()
	},
	silent: true,
}

// audited says what is recorded of a command that was applied. what is empty
// when nothing is. Nothing secret may be in it: no environment, no value of a
// configuration key, no secret of a token, no key.
func audited(c *commandv1.Command) (class commandv1.AuditClass, action, subject, detail string) {
	const (
		security  = commandv1.AuditClass_AUDIT_CLASS_SECURITY
		human     = commandv1.AuditClass_AUDIT_CLASS_ACTION
		lifecycle = commandv1.AuditClass_AUDIT_CLASS_LIFECYCLE
	)
	switch op := c.GetOp().(type) {
	case *commandv1.Command_InitCluster:
		return security, "cluster.init", op.InitCluster.GetClusterId(), ""
	case *commandv1.Command_PutIdentity:
		action = "identity.allow"
		if op.PutIdentity.GetDenied() {
			action = "identity.deny"
		}
		return security, action, op.PutIdentity.GetUri(), op.PutIdentity.GetReason()
	case *commandv1.Command_CreateToken:
		x := op.CreateToken
		return security, "token.create", x.GetId(), fmt.Sprintf("role %s, names %q, uses %d", x.GetRole(), x.GetNameGlob(), x.GetUses())
	case *commandv1.Command_ConsumeToken:
		return security, "token.use", op.ConsumeToken.GetId(), op.ConsumeToken.GetRole() + "/" + op.ConsumeToken.GetName()
	case *commandv1.Command_RevokeToken:
		return security, "token.revoke", op.RevokeToken.GetId(), ""
	case *commandv1.Command_PutKey:
		return security, "key.put", op.PutKey.GetKey().GetId(), op.PutKey.GetKey().GetKind()
	case *commandv1.Command_DeleteKey:
		return security, "key.delete", op.DeleteKey.GetId(), ""
	case *commandv1.Command_RemoveServer:
		return security, "server.remove", op.RemoveServer.GetId(), ""
	case *commandv1.Command_PutPolicy:
		return security, "policy.put", op.PutPolicy.GetPolicy().GetName(), ""
	case *commandv1.Command_DeletePolicy:
		return security, "policy.delete", op.DeletePolicy.GetName(), ""
	case *commandv1.Command_SetLimits:
		return security, "limits.set", "", ""
	case *commandv1.Command_CreateIntercept:
		spec := op.CreateIntercept.GetSpec()
		action = "intercept.create"
		if op.CreateIntercept.GetForce() {
			action = "intercept.create.force"
		}
		return human, action, interceptID(op.CreateIntercept.GetSessionId(), spec.GetName()), spec.GetNamespace() + "/" + spec.GetAgent()
	case *commandv1.Command_RemoveIntercept:
		id := op.RemoveIntercept.GetId()
		if id == "" {
			id = interceptID(op.RemoveIntercept.GetSessionId(), op.RemoveIntercept.GetName())
		}
		return human, "intercept.remove", id, ""
	case *commandv1.Command_RemoveNode:
		return human, "node.remove", op.RemoveNode.GetName(), ""
	case *commandv1.Command_PutConfig:
		// Users' keys are data, written by the thousand a second.
		if strings.HasPrefix(op.PutConfig.GetKey(), systemConfig) {
			return human, "config.put", op.PutConfig.GetKey(), ""
		}
	case *commandv1.Command_DeleteConfig:
		if strings.HasPrefix(op.DeleteConfig.GetKey(), systemConfig) {
			return human, "config.delete", op.DeleteConfig.GetKey(), ""
		}
	case *commandv1.Command_ArriveClient:
		return lifecycle, "client.arrive", c.GetStampedId(), op.ArriveClient.GetInfo().GetName()
	case *commandv1.Command_ArriveAgent:
		info := op.ArriveAgent.GetInfo()
		return lifecycle, "agent.arrive", info.GetNamespace() + "/" + info.GetName(), info.GetPodName()
	case *commandv1.Command_Depart:
		return lifecycle, "session.depart", op.Depart.GetSessionId(), ""
	case *commandv1.Command_ExpireSessions:
		items := op.ExpireSessions.GetItems()
		if len(items) > 0 {
			return lifecycle, "session.expire", items[0].GetSessionId(), fmt.Sprintf("%d sessions", len(items))
		}
	case *commandv1.Command_PutServer:
		return lifecycle, "server.start", op.PutServer.GetServer().GetName(), op.PutServer.GetServer().GetVersion()
	case *commandv1.Command_PutNode:
		return lifecycle, "node.report", op.PutNode.GetNode().GetName(), op.PutNode.GetNode().GetVersion()
	case *commandv1.Command_RecordAudit:
		x := op.RecordAudit
		return x.GetClass(), x.GetAction(), x.GetSubject(), x.GetDetail()
	}
	return commandv1.AuditClass_AUDIT_CLASS_UNSPECIFIED, "", "", ""
}

// systemConfig starts the keys that belong to trivet itself.
const systemConfig = "trivet/"

// audit records a command after it was applied. Refusals are recorded only
// where somebody was not allowed to: whoever sends nonsense must not be able
// to push everybody's records out of the ring.
func (t *tx) audit(res *commandv1.Result) {
	if res.GetReason() == ReasonIdentityDenied {
		return
	}
	if code := res.GetCode(); code != commandv1.Code_CODE_OK && code != commandv1.Code_CODE_PERMISSION_DENIED {
		return
	}
	class, action, subject, detail := audited(t.cmd)
	ring, ok := auditRing[class]
	if !ok || action == "" {
		return
	}
	head, at := auditHead(t.work.meta.GetAudit(), class)
	row := &commandv1.AuditRow{
		Class: class, Number: head.GetNumber() + 1, Revision: t.revision(), Time: t.now(), Identity: t.cmd.GetIdentity(),
		Action: cut(action), Subject: cut(subject), Code: res.GetCode(), Reason: res.GetReason(), Detail: cut(detail),
		PreviousHash: head.GetHash(),
	}
	row.Hash = auditHash(t.enc, row)
	put(t, &t.work.audit, row)
	next := &commandv1.AuditHead{Class: class, Number: row.GetNumber(), Hash: row.GetHash(), Oldest: max(head.GetOldest(), 1)}
	if next.GetNumber()-next.GetOldest() >= ring {
		drop(t, &t.work.audit, auditKey(class, next.GetOldest()))
		next.Oldest++
	}
	// Published metas share the slice.
	heads := append([]*commandv1.AuditHead(nil), t.work.meta.GetAudit()...)
	if at < 0 {
		heads = append(heads, next)
	} else {
		heads[at] = next
	}
	t.work.meta.Audit = heads
}

func auditHead(heads []*commandv1.AuditHead, class commandv1.AuditClass) (*commandv1.AuditHead, int) {
	for i, h := range heads {
		if h.GetClass() == class {
			return h, i
		}
	}
	return nil, -1
}

// cut bounds a text, which may come from anybody.
func cut(s string) string {
	if len(s) > maxAuditText {
		return strings.ToValidUTF8(s[:maxAuditText], "")
	}
	return s
}

// auditHash covers everything in a record but the hash itself and the
// revisions that the table keeps.
func auditHash(e *encoder, row *commandv1.AuditRow) []byte {
	row = edit(row)
	row.Hash, row.CreateRevision, row.ModifyRevision = nil, 0, 0
	e.buf = e.buf[:0]
	e.str("trivet audit")
	e.message(row.ProtoReflect())
	sum := sha256.Sum256(e.buf)
	return sum[:]
}

// VerifyAudit checks the records of one class, in the order of their numbers:
// that none is missing between the first and the last, that each has the hash
// of what it says and names that of the one before it, and, when head is not
// nil, that the last is the one that the head names. It returns the first
// thing that is wrong.
func VerifyAudit(records []*commandv1.AuditRow, head *commandv1.AuditHead) error {
	e := newEncoder()
	for i, row := range records {
		if i > 0 {
			before := records[i-1]
			if row.GetClass() != before.GetClass() {
				return fmt.Errorf("record %d is of class %v, the one before it of class %v", row.GetNumber(), row.GetClass(), before.GetClass())
			}
			if row.GetNumber() != before.GetNumber()+1 {
				return fmt.Errorf("record %d follows record %d: some are missing", row.GetNumber(), before.GetNumber())
			}
			if !bytes.Equal(row.GetPreviousHash(), before.GetHash()) {
				return fmt.Errorf("record %d does not continue record %d", row.GetNumber(), before.GetNumber())
			}
		}
		if !bytes.Equal(auditHash(e, row), row.GetHash()) {
			return fmt.Errorf("record %d was changed after it was made", row.GetNumber())
		}
	}
	if head == nil || len(records) == 0 {
		return nil
	}
	last := records[len(records)-1]
	if last.GetNumber() != head.GetNumber() || !bytes.Equal(last.GetHash(), head.GetHash()) {
		return fmt.Errorf("the last record is %d, the chain's head is record %d", last.GetNumber(), head.GetNumber())
	}
	return nil
}

func (t *tx) recordAudit(op *commandv1.RecordAudit) *commandv1.Result {
	if _, ok := auditRing[op.GetClass()]; !ok {
		return invalid("audit class %v is unknown", op.GetClass())
	}
	if op.GetAction() == "" {
		return invalid("audit action must not be empty")
	}
	return done()
}

// Audit yields the records of a class after a number, oldest first.
func (r *Root) Audit(class commandv1.AuditClass, after uint64) func(yield func(*commandv1.AuditRow) bool) {
	return func(yield func(*commandv1.AuditRow) bool) {
		r.audit.rows.Ascend(auditKey(class, after+1), func(_ string, s *stored[*commandv1.AuditRow]) bool {
			return s.row.GetClass() == class && yield(s.row)
		})
	}
}

// auditProblems checks the chains.
func (r *Root) auditProblems(yield func(string) bool) {
	total := 0
	for class := range auditRing {
		head, _ := auditHead(r.meta.GetAudit(), class)
		var rows []*commandv1.AuditRow
		for row := range r.Audit(class, 0) {
			rows = append(rows, row)
		}
		total += len(rows)
		if n := head.GetNumber(); n > 0 && (uint64(len(rows)) != n-head.GetOldest()+1 || rows[0].GetNumber() != head.GetOldest()) {
			if !yield(fmt.Sprintf("audit class %v has %d records, its head names %d to %d", class, len(rows), head.GetOldest(), n)) {
				return
			}
			continue
		}
		if head == nil && len(rows) > 0 {
			head = new(commandv1.AuditHead)
		}
		if err := VerifyAudit(rows, head); err != nil && !yield(fmt.Sprintf("audit class %v: %v", class, err)) {
			return
		}
	}
	if total != r.audit.rows.Len() {
		yield("an audit record is of no class")
	}
}
