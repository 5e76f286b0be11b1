package fsm

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

func identityChanges(r *rig, n int) {
	for i := range n {
		r.entry(r.stamp(&commandv1.Command{Op: &commandv1.Command_PutIdentity{PutIdentity: &commandv1.PutIdentity{
			Uri: fmt.Sprintf("spiffe://c/client/u%d", i%7), Denied: i%2 == 0, Reason: "test",
		}}}))
	}
}

func TestAuditChainShowsEveryChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	identityChanges(r, 20)
	root := r.m.Root()
	head, _ := auditHead(root.Meta().GetAudit(), security)
	records := func() []*commandv1.AuditRow {
		var out []*commandv1.AuditRow
		for row := range root.Audit(security, 0) {
			out = append(out, proto.CloneOf(row))
		}
		return out
	}
	if err := VerifyAudit(records(), head); err != nil || len(records()) != 20 {
		t.Fatalf("%d records: %v", len(records()), err)
	}
	for name, damage := range map[string]func([]*commandv1.AuditRow) []*commandv1.AuditRow{
		"a text is changed":        func(a []*commandv1.AuditRow) []*commandv1.AuditRow { a[5].Subject += "x"; return a },
		"a hash is changed":        func(a []*commandv1.AuditRow) []*commandv1.AuditRow { a[5].Hash[0] ^= 1; return a },
		"a link is changed":        func(a []*commandv1.AuditRow) []*commandv1.AuditRow { a[5].PreviousHash[0] ^= 1; return a },
		"one is missing":           func(a []*commandv1.AuditRow) []*commandv1.AuditRow { return slices.Delete(a, 5, 6) },
		"the newest is missing":    func(a []*commandv1.AuditRow) []*commandv1.AuditRow { return a[:19] },
		"two have changed places":  func(a []*commandv1.AuditRow) []*commandv1.AuditRow { a[5], a[6] = a[6], a[5]; return a },
		"the time of one is wrong": func(a []*commandv1.AuditRow) []*commandv1.AuditRow { a[19].Time++; return a },
	} {
		if VerifyAudit(damage(records()), head) == nil {
			t.Errorf("%s, and nothing is found", name)
		}
	}
}

func TestAuditRingIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	identityChanges(r, auditLong+10)
	root := r.m.Root()
	head, _ := auditHead(root.Meta().GetAudit(), security)
	if n := root.Len(TableAudit); n != auditLong || head.GetOldest() != 11 || head.GetNumber() != auditLong+10 {
		t.Errorf("%d records, from %d to %d", n, head.GetOldest(), head.GetNumber())
	}
	if err := root.Verify(); err != nil {
		t.Error(err)
	}
	sameState(t, root, restored(t, snapshotOf(t, r.m)).m.Root())
}

// TestNoSecretIsOnRecord: environments, values, secrets and keys never get
// into the audit.
func TestNoSecretIsOnRecord(t *testing.T) {
	t.Parallel()
	const canary = "CANARY"
	r := newRig(t, Options{})
	r.identity = "spiffe://c/operator/olga"
	r.do(cmdPutConfig("trivet/x", canary))
	r.do(&commandv1.Command{Op: &commandv1.Command_CreateToken{CreateToken: &commandv1.CreateToken{
		Id: "t", SecretHash: []byte(strings.Repeat(canary, 6))[:32], Role: "client", NameGlob: "*", Uses: 1, ExpiresAt: r.now + 1e9,
	}}})
	r.do(&commandv1.Command{Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{
		Key: &commandv1.KeyRow{Id: "k", Kind: "issuing", Sealed: []byte(canary), Public: []byte(canary)},
	}}})
	n := 0
	for _, class := range auditClasses {
		for row := range r.m.Root().Audit(class, 0) {
			n++
			if strings.Contains(row.String(), canary) {
				t.Errorf("a record holds a secret: %v", row)
			}
		}
	}
	if n != 3 {
		t.Errorf("%d records", n)
	}
}

// TestOlderCommandsKeepTheOlderRules: while a server that knows only version 1
// is there, nothing may happen that it does not do too.
func TestOlderCommandsKeepTheOlderRules(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i := range 100 {
		c := cmdArriveClient(fmt.Sprintf("c%d", i))
		c.Version, c.Identity = 1, "spiffe://c/client/alice"
		if res := r.do(c); res.GetCode() != commandv1.Code_CODE_OK {
			t.Fatalf("session %d: %v", i, res)
		}
	}
	if n := r.m.Root().Len(TableAudit); n != 0 {
		t.Errorf("%d audit records", n)
	}
	put := &commandv1.Command{Version: 1, Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{Key: &commandv1.KeyRow{Id: "k", Kind: "x"}}}}
	if res := r.do(put); res.GetCode() != commandv1.Code_CODE_INVALID_ARGUMENT {
		t.Errorf("an operation of version 2 in a command of version 1: %v", res)
	}
}

// TestEveryOperationIsInTheAuditOrNotOnPurpose: the class in the table of
// operations and the texts belong together.
func TestEveryOperationIsInTheAuditOrNotOnPurpose(t *testing.T) {
	t.Parallel()
	ops := (&commandv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	for i := range ops.Len() {
		c := &commandv1.Command{}
		m := c.ProtoReflect()
		m.Set(ops.Get(i), m.NewField(ops.Get(i)))
		switch op := c.GetOp().(type) {
		case *commandv1.Command_PutConfig:
			op.PutConfig.Key = systemConfig + "x"
		case *commandv1.Command_DeleteConfig:
			op.DeleteConfig.Key = systemConfig + "x"
		case *commandv1.Command_SetIntercept:
			op.SetIntercept.Remove = true
		case *commandv1.Command_RecordAudit:
			continue // says all of it itself
		}
		class := appliers[reflect.TypeOf(c.GetOp())].class
		what := (&tx{cmd: c}).described(&commandv1.Result{})
		if (what.action == "") != (class == unrecorded) {
			t.Errorf("%s has class %v and action %q", ops.Get(i).Name(), class, what.action)
		}
	}
}

// TestRefusalsDoNotFloodTheAudit: one who is refused all the time leaves a few
// records, and nobody else's go for it.
func TestRefusalsDoNotFloodTheAudit(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	put := func(identity string) {
		c := &commandv1.Command{Identity: identity, Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{Key: &commandv1.KeyRow{Id: "k", Kind: "x"}}}}
		r.entry(r.stamp(c))
	}
	put("spiffe://c/operator/olga")
	for range 500 {
		put("spiffe://c/client/mallory")
	}
	put("spiffe://c/client/bob")
	r.advance(time.Minute)
	for range 500 {
		put("spiffe://c/client/mallory")
	}
	records := slices.Collect(r.m.Root().Audit(security, 0))
	if len(records) != 2+2*maxRefusals {
		t.Fatalf("%d records", len(records))
	}
	if last := records[maxRefusals]; !strings.HasSuffix(last.GetDetail(), moreRefusals) {
		t.Errorf("the last one says %q", last.GetDetail())
	}
	if records[maxRefusals+1].GetIdentity() != "spiffe://c/client/bob" {
		t.Error("somebody else's refusal is missing")
	}
	if err := r.m.Root().Verify(); err != nil {
		t.Error(err)
	}
}
