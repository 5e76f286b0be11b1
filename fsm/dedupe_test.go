package fsm

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	commandv1 "trivet/proto/trivet/command/v1"
)

func TestAnswersPerWriterAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	var last *commandv1.Result
	for i := range uint64(maxAnswers + 1) {
		c := withRequest(cmdPutConfig("k", fmt.Sprint(i)), "client/w", i+1, 1)
		last = r.entry(r.stamp(c))[0]
	}
	if last.GetReason() != ReasonDedupeFull || last.GetCode() != commandv1.Code_CODE_RESOURCE_EXHAUSTED {
		t.Fatalf("result is %v", compact(last))
	}
	if row, _ := r.m.Root().Config("k"); string(row.GetValue()) != fmt.Sprint(maxAnswers-1) {
		t.Errorf("it was applied all the same: %v", compact(row))
	}
	if err := r.m.Root().Verify(); err != nil {
		t.Fatal(err)
	}
	// Fetching one answer makes room for one.
	r.ok(withRequest(cmdPutConfig("k", "x"), "client/w", maxAnswers+1, 2))
	if res := r.do(withRequest(cmdPutConfig("k", "x"), "client/w", maxAnswers+2, 2)); res.GetReason() != ReasonDedupeFull {
		t.Errorf("result is %v", compact(res))
	}
	// All of them.
	r.ok(withRequest(cmdPutConfig("k", "x"), "client/w", maxAnswers+2, maxAnswers+2))
	w, _ := r.m.Root().writers.get((&writer{name: "client/w"}).key())
	if w.answers != 1 {
		t.Errorf("%d answers are kept", w.answers)
	}
}

func TestBytesPerWriterAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	arrive := func(n uint64) *commandv1.Result {
		c := cmdArriveClient(fmt.Sprintf("client-%d", n))
		c.GetArriveClient().Info.Namespace = strings.Repeat("n", 900<<10)
		c.Version = 1 // later ones take no such thing
		return r.entry(r.stamp(withRequest(c, "client/w", n, 1)))[0]
	}
	n := uint64(1)
	for ; n < 20; n++ {
		if res := arrive(n); res.GetReason() == ReasonDedupeFull {
			break
		}
	}
	if n != 6 {
		t.Errorf("refused at %d", n)
	}
}

func TestConfigValuesAreNotRemembered(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	put := func() *commandv1.Command {
		return withRequest(cmdPutConfig("k", strings.Repeat("x", maxConfigValue)), "client/w", 1, 1)
	}
	if first := r.ok(put()); len(first.GetConfig().GetValue()) != maxConfigValue {
		t.Error("the first answer lacks the value")
	}
	again := r.ok(put())
	if !again.GetRepeated() || len(again.GetConfig().GetValue()) != 0 || again.GetConfig().GetModifyRevision() != 1 {
		t.Errorf("the repeated answer is %v", compact(again))
	}
	if r.m.Root().dedupeBytes > 1024 {
		t.Errorf("%d bytes are kept", r.m.Root().dedupeBytes)
	}
}

func TestWritersAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	send := func(writer string) {
		r.advance(time.Millisecond)
		r.entry(r.stamp(withRequest(cmdPutConfig("k", "v"), writer, 1, 1)))
	}
	known := func(name string) bool {
		_, ok := r.m.Root().writers.get((&writer{name: name}).key())
		return ok
	}
	for i := range defaultBounds.writers {
		send(fmt.Sprintf("client/%04d", i))
	}
	send("client/0000") // used again: 0001 is now the one used longest ago
	send("client/new")
	if !known("client/0000") || known("client/0001") || !known("client/0002") || !known("client/new") {
		t.Error("another writer than the least recently used one was forgotten")
	}
	if n := r.m.Root().Len(TableDedupe); n != defaultBounds.writers {
		t.Errorf("%d writers", n)
	}
	if err := r.m.Root().Verify(); err != nil {
		t.Error(err)
	}
}

func TestAnswersOverallAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i := range 90 {
		c := cmdArriveClient(fmt.Sprintf("client-%d", i))
		c.GetArriveClient().Info.Namespace = strings.Repeat("n", 900<<10)
		c.Version = 1 // later ones take no such thing
		r.advance(time.Millisecond)
		r.entry(r.stamp(withRequest(c, fmt.Sprintf("client/%02d", i), 1, 1)))
	}
	root := r.m.Root()
	if root.dedupeBytes > defaultBounds.bytes || root.dedupeBytes < defaultBounds.bytes/2 {
		t.Errorf("%d bytes are kept", root.dedupeBytes)
	}
	if _, ok := root.writers.get((&writer{name: "client/89"}).key()); !ok {
		t.Error("the newest writer was forgotten")
	}
	if _, ok := root.writers.get((&writer{name: "client/00"}).key()); ok {
		t.Error("the oldest writer is still there")
	}
}

func TestIdleWritersGoAFewAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for i := range 20 {
		r.ok(withRequest(cmdPutConfig("k", "v"), fmt.Sprintf("client/%d", i), 1, 1))
	}
	// A day, as the state measures it: no command takes it further than that.
	for range int(writerIdle / maxTick) {
		r.advance(maxTick)
		r.ok(cmdPutConfig("k", "v"))
	}
	for _, want := range []int{13, 5, 1} {
		r.ok(withRequest(cmdPutConfig("k", "v"), "client/w", uint64(100-want), 1))
		if got := r.m.Root().Len(TableDedupe); got != want {
			t.Errorf("%d writers, not %d", got, want)
		}
	}
}

func TestRequestFieldsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	long := withRequest(cmdPutConfig("k", "v"), strings.Repeat("w", maxWriterName+1), 1, 1)
	digest := withRequest(cmdPutConfig("k", "v"), "client/w", 1, 1)
	digest.RequestId.PayloadDigest = make([]byte, maxPayloadDigest+1)
	for _, c := range []*commandv1.Command{long, digest} {
		if res := r.do(c); res.GetReason() != ReasonInvalid {
			t.Errorf("result is %v", compact(res))
		}
	}
}

// TestWriterThatForgetsItself lets the very command that ends a writer be
// numbered by it: version 1 forgets the writer, and what is stored then is a new
// one; since version 2 it is retired and stays so.
func TestWriterThatForgetsItself(t *testing.T) {
	t.Parallel()
	server := func(boot string) *commandv1.Command {
		return &commandv1.Command{Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{
			Server: &commandv1.ServerRow{Id: "s1", BootId: boot},
		}}}
	}
	for version, want := range map[uint32]writer{1: {lowest: 1, answers: 1}, 2: {lowest: retiredLowest}} {
		r := newRig(t, Options{})
		do := func(c *commandv1.Command) {
			c.Version = version
			r.ok(c)
		}
		do(server("b1"))
		do(withRequest(cmdPutConfig("k", "v"), "server/s1/b1", 1, 1))
		do(withRequest(server("b2"), "server/s1/b1", 2, 1))
		w, _ := r.m.Root().writers.get((&writer{name: "server/s1/b1"}).key())
		if w == nil || w.answers != want.answers || w.lowest != want.lowest {
			t.Errorf("version %d: writer is %+v", version, w)
		}
	}
}

// TestACallersHighestNumberIsLikeAnyOther: only servers' writers are retired.
func TestACallersHighestNumberIsLikeAnyOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	last := func() *commandv1.Command {
		return withRequest(cmdPutConfig("k", "v"), "client/w", math.MaxUint64, math.MaxUint64)
	}
	r.ok(last())
	if res := r.do(last()); !res.GetRepeated() || res.GetCode() != commandv1.Code_CODE_OK {
		t.Errorf("the repetition: %v", compact(res))
	}
}

// TestRetiredWritersAreBounded: a server that starts over and over leaves no more
// than so many behind, the newest.
func TestRetiredWritersAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	const boots = 3 * maxRetired
	for n := range boots {
		boot := fmt.Sprintf("b%02d", n)
		r.ok(&commandv1.Command{Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{
			Server: &commandv1.ServerRow{Id: "s1", BootId: boot},
		}}})
		r.ok(withRequest(cmdPutConfig("k", boot), "server/s1/"+boot, 1, 1))
	}
	var retired []string
	for w := range r.m.Root().writers.all {
		if w.retired() {
			retired = append(retired, w.name)
		}
	}
	if len(retired) != maxRetired || retired[len(retired)-1] != fmt.Sprintf("server/s1/b%02d", boots-2) {
		t.Errorf("%d are retired: %v", len(retired), retired)
	}
}

// TestAClockThatJumpsForgetsNobody: the commands of a leader whose clock is days
// ahead do not make the manager forget what it has answered. Time that passes
// does.
func TestAClockThatJumpsForgetsNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	first := func() *commandv1.Command { return withRequest(cmdPutConfig("k", "v"), "client/w", 1, 1) }
	r.ok(first())
	r.advance(25 * time.Hour)
	for range 100 {
		r.ok(withRequest(cmdPutConfig("other", "v"), "client/other", 1, 1))
		r.advance(time.Second)
	}
	if res := r.do(first()); !res.GetRepeated() {
		t.Errorf("the answer was forgotten: %v", compact(res))
	}
	for range 24 * 6 {
		r.advance(10 * time.Minute)
		r.ok(withRequest(cmdPutConfig("other", "v"), "client/other", 1, 1))
	}
	if res := r.do(first()); res.GetRepeated() {
		t.Errorf("a day later the answer is still there: %v", compact(res))
	}
}

func TestTermIsCheckedAfterTheAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	fenced := func(term uint64) *commandv1.Command {
		c := withRequest(cmdPutConfig("k", "v"), "server/s1/b1", 1, 1)
		c.ExpectedTerm = term
		return c
	}
	if res := r.do(fenced(9)); res.GetReason() != ReasonStaleTerm {
		t.Errorf("result is %v", compact(res))
	}
	r.ok(fenced(1))
	r.term = 2
	if res := r.ok(fenced(1)); !res.GetRepeated() {
		t.Errorf("result is %v", compact(res))
	}
}
