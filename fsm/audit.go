package fsm

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"

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

// auditClasses are the classes that have a chain.
var auditClasses = [...]commandv1.AuditClass{security, action, lifecycle}

// ringOf returns how many records of a class are kept; 0 if it is none.
func ringOf(class commandv1.AuditClass) uint64 {
	switch class {
	case security, action:
		return auditLong
	case lifecycle:
		return auditShort
	}
	return 0
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

// audit records a command after it was applied, if it is worth it.
func (t *tx) audit(op *applier, res *commandv1.Result) {
	class := op.class
	if x := t.cmd.GetRecordAudit(); x != nil {
		class = x.GetClass()
	}
	ring := ringOf(class)
	if ring == 0 {
		return
	}
	more := ""
	switch res.GetCode() {
	case commandv1.Code_CODE_OK:
		if !t.worthRecording() {
			return
		}
	case commandv1.Code_CODE_PERMISSION_DENIED:
		n := t.refusalsOnRecord(class)
		if n >= maxRefusals || res.GetReason() == ReasonIdentityDenied {
			return
		}
		if n == maxRefusals-1 {
			more = moreRefusals
		}
	default:
		return
	}
	what := t.described(res)
	if what.action == "" {
		return
	}
	head, at := auditHead(t.work.meta.GetAudit(), class)
	row := &commandv1.AuditRow{
		Class: class, Number: head.GetNumber() + 1, Revision: t.revision(), Time: t.now(), Identity: t.cmd.GetIdentity(),
		Action: cut(what.action, maxAuditText), Subject: cut(what.subject, maxAuditText), Code: res.GetCode(), Reason: res.GetReason(),
		Detail: cut(what.detail, maxAuditText) + more, PreviousHash: head.GetHash(),
	}
	row.Hash = auditHash(t.enc, row)
	put(t, &t.work.audit, row)
	next := &commandv1.AuditHead{Class: class, Number: row.GetNumber(), Hash: row.GetHash(), Oldest: max(head.GetOldest(), 1)}
	if next.GetNumber()-next.GetOldest() >= ring {
		drop(t, &t.work.audit, auditKey(class, next.GetOldest()))
		next.Oldest++
	}
	// Published metas share the slice.
	heads := slices.Clone(t.work.meta.GetAudit())
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

// auditHash covers everything in a record but the hash itself and the
// revisions that the table keeps.
func auditHash(e *encoder, row *commandv1.AuditRow) []byte {
	if len(row.GetHash()) > 0 { // else it is being made
		row = edit(row)
		row.Hash, row.CreateRevision, row.ModifyRevision = nil, 0, 0
	}
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
	for _, class := range auditClasses {
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
