package fsm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	commandv1 "trivet/proto/trivet/command/v1"
)

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
	for i := range 4 * defaultBounds.identityWriters {
		send("spiffe://c/client/mallory", fmt.Sprintf("client/%d", i), 1)
	}
	again := send("spiffe://c/client/alice", "client/a", 1)
	if !again.GetRepeated() || again.GetRevision() != first.GetRevision() {
		t.Errorf("alice's answer is gone: %v", again)
	}
	if n := r.m.Root().Len(TableDedupe); n > defaultBounds.identityWriters+1 {
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
		info := agentInfo("web", fmt.Sprint(i))
		info.Environment = map[string]string{"BIG": strings.Repeat("n", 12<<10)}
		return withRequest(cmdArriveAgent(info), "server/s1/b1", i, 1)
	}
	for i := uint64(1); i <= 400; i++ {
		if res := r.entry(r.stamp(arrive(i)))[0]; res.GetCode() != commandv1.Code_CODE_OK {
			t.Fatalf("session %d: %v", i, compact(res))
		}
	}
	if n := r.m.Root().dedupeBytes; n > 128<<10 {
		t.Errorf("%d bytes of answers", n)
	}
	again := r.do(arrive(7))
	now, _ := r.m.Root().Session("agent:7")
	if !again.GetRepeated() || !proto.Equal(again.GetSession(), now) || now == nil {
		t.Errorf("the repeated answer has another row than the state: %v", again.GetRepeated())
	}
	sameState(t, r.m.Root(), restored(t, snapshotOf(t, r.m)).m.Root())
}

// TestNamesOfRowsAreLookedUp goes through all kinds of rows.
func TestNamesOfRowsAreLookedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	root := r.m.Root()
	session, _ := root.Session("alice")
	intercept, _ := root.Intercept("alice:one")
	node, _ := root.Node("n1")
	workload, _ := root.Workload("default", "web")
	token, _ := root.Token("t1")
	server, _ := root.Server("s1")
	key, _ := root.Key("issuing/1")
	policy, _ := root.Policy("all")
	gone := withSession(&commandv1.SessionRow{Id: "gone"})
	config, _ := root.Config("greeting")
	tx := &tx{work: r.m.work}
	for _, res := range []*commandv1.Result{
		withSession(session), withIntercept(intercept), withNode(node), withWorkload(workload), withToken(token), withServer(server),
		withKey(key),
		{Row: &commandv1.Result_Policy{Policy: policy}},
		gone, done(), invalid("no"),
	} {
		if got := tx.recall(onlyName(res)); !proto.Equal(got, res) {
			t.Errorf("%v became %v", compact(res), compact(got))
		}
	}
	// A value is never remembered, the revisions always.
	if got := tx.recall(onlyName(withConfig(config))).GetConfig(); len(got.GetValue()) != 0 || got.GetModifyRevision() != config.GetModifyRevision() {
		t.Errorf("a configuration entry became %v", compact(got))
	}
}

// TestNoCallerHasOthersRefused: what the callers of a server send, however
// large, leaves room for as many answers as a server ever waits for.
func TestNoCallerHasOthersRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.identity = "spiffe://c/operator/olga"
	r.ok(&commandv1.Command{Op: &commandv1.Command_CreateToken{CreateToken: &commandv1.CreateToken{
		Id: "t", SecretHash: secretHash("s"), Role: "client", NameGlob: "*", Uses: maxTokenUses, ExpiresAt: r.now + 1e15,
	}}})
	long := strings.Repeat("\u00e9", 10<<10)
	nasty := []func(i uint64) *commandv1.Command{
		func(uint64) *commandv1.Command {
			return &commandv1.Command{Op: &commandv1.Command_RemoveIntercept{RemoveIntercept: &commandv1.RemoveIntercept{Id: long}}}
		},
		func(uint64) *commandv1.Command { return cmdCreate(long, interceptSpec("c", "n", "w", 80)) },
		func(uint64) *commandv1.Command { return cmdPutConfig(strings.Repeat("k", maxConfigKey), long) },
		func(i uint64) *commandv1.Command {
			return &commandv1.Command{Op: &commandv1.Command_ConsumeToken{ConsumeToken: &commandv1.ConsumeToken{
				Id: "t", SecretHash: secretHash("s"), Role: "client", Name: fmt.Sprint(i), KeyDigest: secretHash("k"),
			}}}
		},
		func(uint64) *commandv1.Command {
			info := agentInfo(strings.Repeat("w", maxText), strings.Repeat("u", maxText))
			info.Environment = map[string]string{"BIG": long}
			return cmdArriveAgent(info)
		},
		func(i uint64) *commandv1.Command {
			return &commandv1.Command{Op: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{Policy: &commandv1.PolicyRow{
				Name: strings.Repeat("p", maxName), Identities: []string{strings.Repeat("i", maxLine)}, Order: uint32(i),
			}}}}
		},
	}
	for i := range uint64(maxAnswers) {
		c := withRequest(nasty[i%uint64(len(nasty))](i), "server/s1/"+strings.Repeat("b", 400), i+1, 1)
		if res := r.entry(r.stamp(c))[0]; res.GetReason() == ReasonDedupeFull {
			t.Fatalf("refused at %d: %v", i+1, compact(res))
		}
	}
	if err := r.m.Root().Verify(); err != nil {
		t.Fatal(err)
	}
	r.m.Root().answers.all(func(a *answer) bool {
		s, _ := r.m.Root().answers.rows.Get(answerKind.key(a))
		if s.size > maxAnswer {
			t.Errorf("an answer of %d bytes: %.300s", s.size, compact(a.result))
		}
		return true
	})
}

// TestTheAnswersOfTheQuietStay: whatever a few identities do with writers and
// sizes, they push out only each other's answers, or their own.
func TestTheAnswersOfTheQuietStay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := New(Options{})
		bounds := dedupeBounds{
			writerBytes: 6 << 10, serverBytes: 6 << 10, identityWriters: 4, identityBytes: 12 << 10, writers: 14, bytes: 40 << 10,
		}
		m.work.bounds = bounds
		now := epoch
		send := func(identity, writer string, number uint64, size int) *commandv1.Result {
			now += 1e6
			c := cmdArriveClient("x")
			c.StampedId = fmt.Sprint(now)
			c.GetArriveClient().Info.ApiKey = strings.Repeat("k", size)
			c = withRequest(c, writer, number, 1)
			c.Version, c.Identity, c.Time = CommandVersion, identity, now
			res, err := m.Apply(Position{Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c}})
			if err != nil {
				t.Fatal(err)
			}
			return res[0]
		}
		quiet := send("spiffe://c/client/alice", "client/a", 1, 10)
		server := send("spiffe://c/client/alice", "server/s1/b1", 1, 10)
		numbers := map[string]uint64{}
		for range rapid.IntRange(1, 60).Draw(t, "commands") {
			identity := fmt.Sprintf("spiffe://c/client/m%d", rapid.IntRange(0, 5).Draw(t, "identity"))
			writer := fmt.Sprintf("client/%d", rapid.IntRange(0, 7).Draw(t, "writer"))
			numbers[identity+writer]++
			send(identity, writer, numbers[identity+writer], rapid.IntRange(0, 3000).Draw(t, "size"))
			checkShares(t, m.work, bounds)
		}
		checkRoot(t, m.Root())
		if res := send("spiffe://c/client/alice", "client/a", 1, 10); !res.GetRepeated() || res.GetRevision() != quiet.GetRevision() {
			t.Fatalf("alice's answer is gone: %v", compact(res))
		}
		if res := send("spiffe://c/client/alice", "server/s1/b1", 1, 10); !res.GetRepeated() || res.GetRevision() != server.GetRevision() {
			t.Fatalf("the server's answer is gone: %v", compact(res))
		}
	})
}

// checkShares compares the shares with the writers that are there, and both
// with the bounds.
func checkShares(t *rapid.T, r *Root, b dedupeBounds) {
	t.Helper()
	want := map[string]share{}
	for w := range r.writers.all {
		if !w.isServer() {
			s := want[w.identity]
			want[w.identity] = share{s.writers + 1, s.bytes + w.bytes}
		}
	}
	if len(want) != len(r.shares) {
		t.Fatalf("shares of %d identities, %d have writers", len(r.shares), len(want))
	}
	for identity, s := range want {
		if r.shares[identity] != s {
			t.Fatalf("%s has %+v, its share says %+v", identity, s, r.shares[identity])
		}
		if s.writers > b.identityWriters || s.bytes > b.identityBytes {
			t.Fatalf("%s has %+v", identity, s)
		}
	}
	if r.writers.rows.Len() > b.writers || r.dedupeBytes > b.bytes {
		t.Fatalf("%d writers, %d bytes", r.writers.rows.Len(), r.dedupeBytes)
	}
}

// TestRestoredSharesAreThoseBefore: what gives way next must not depend on
// whether a server has restored a snapshot.
func TestRestoredSharesAreThoseBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i := range uint64(50) {
		r.advance(time.Millisecond)
		c := withRequest(cmdPutConfig("k", "v"), fmt.Sprintf("client/%d", i%5), i+1, 1)
		c.Identity = fmt.Sprintf("spiffe://c/client/u%d", i%3)
		r.entry(r.stamp(c))
	}
	again := restored(t, snapshotOf(t, r.m))
	if len(r.m.work.shares) != 3 || fmt.Sprint(again.m.work.shares) != fmt.Sprint(r.m.work.shares) {
		t.Errorf("%v before, %v after", r.m.work.shares, again.m.work.shares)
	}
}
