package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

const auditSecurity = commandv1.AuditClass_AUDIT_CLASS_SECURITY

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
	head, _ := auditHead(root.Meta().GetAudit(), auditSecurity)
	records := func() []*commandv1.AuditRow {
		var out []*commandv1.AuditRow
		for row := range root.Audit(auditSecurity, 0) {
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
	head, _ := auditHead(root.Meta().GetAudit(), auditSecurity)
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
	for class := range auditRing {
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

func TestDigestsOfPassedRevisionsCanBeCompared(t *testing.T) {
	t.Parallel()
	a, b := newRig(t, Options{}), newRig(t, Options{})
	for i := range digestHistory + 50 {
		a.ok(cmdPutConfig("k", fmt.Sprint(i)))
		if i < digestHistory {
			b.ok(cmdPutConfig("k", fmt.Sprint(i)))
		}
	}
	ahead := map[uint64][32]byte{}
	for _, d := range a.m.Digests(0) {
		ahead[d.Revision] = d.Digest
	}
	if len(ahead) != digestHistory {
		t.Fatalf("%d digests", len(ahead))
	}
	shared := 0
	for _, d := range b.m.Digests(100) {
		if want, ok := ahead[d.Revision]; ok {
			shared++
			if want != d.Digest {
				t.Errorf("digests at revision %d differ", d.Revision)
			}
		}
		if d.Revision < 100 {
			t.Errorf("revision %d was not asked for", d.Revision)
		}
	}
	if shared < 100 {
		t.Errorf("%d revisions in common", shared)
	}
	if got := a.m.Digests(0); got[len(got)-1].Digest != a.m.Root().Digest() {
		t.Error("the newest digest is not that of the state")
	}
	c := restored(t, snapshotOf(t, a.m))
	if got := c.m.Digests(0); len(got) != 1 || got[0].Digest != a.m.Root().Digest() {
		t.Errorf("after a restore: %d digests", len(got))
	}
}

// TestAnIdentityPushesOutOnlyItsOwnAnswers: thousands of writer names of one
// identity cost nobody else an answer.
func TestAnIdentityPushesOutOnlyItsOwnAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	send := func(identity, writer string, n uint64) *commandv1.Result {
		r.advance(time.Millisecond)
		c := withRequest(cmdPutConfig("k", "v"), writer, n, 1)
		c.Identity = identity
		return r.entry(r.stamp(c))[0]
	}
	first := send("spiffe://c/client/alice", "client/a", 1)
	for i := range 3 * maxWriters {
		send("spiffe://c/client/mallory", fmt.Sprintf("client/%d", i), 1)
	}
	again := send("spiffe://c/client/alice", "client/a", 1)
	if !again.GetRepeated() || again.GetRevision() != first.GetRevision() {
		t.Errorf("alice's answer is gone: %v", again)
	}
	if n := r.m.Root().Len(TableDedupe); n > maxIdentityWriters+1 {
		t.Errorf("%d writers are kept", n)
	}
	if err := r.m.Root().Verify(); err != nil {
		t.Error(err)
	}
}

// TestBigRowsInAServersAnswersAreLookedUp: a server's callers share the room
// for its answers, so big rows are kept once.
func TestBigRowsInAServersAnswersAreLookedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	arrive := func(i uint64) *commandv1.Command {
		c := cmdArriveClient(fmt.Sprintf("client-%d", i))
		c.StampedId = fmt.Sprintf("id-%d", i)
		c.GetArriveClient().Info.Namespace = strings.Repeat("n", 12<<10)
		return withRequest(c, "server/s1/b1", i, 1)
	}
	for i := uint64(1); i <= 900; i++ {
		if res := r.entry(r.stamp(arrive(i)))[0]; res.GetCode() != commandv1.Code_CODE_OK {
			t.Fatalf("session %d: %v", i, compact(res))
		}
	}
	if n := r.m.Root().dedupeBytes; n > 256<<10 {
		t.Errorf("%d bytes of answers", n)
	}
	again := r.do(arrive(7))
	now, _ := r.m.Root().Session("id-7")
	if !again.GetRepeated() || !proto.Equal(again.GetSession(), now) || now == nil {
		t.Errorf("the repeated answer has another row than the state: %v", again.GetRepeated())
	}
	sameState(t, r.m.Root(), restored(t, snapshotOf(t, r.m)).m.Root())
}
