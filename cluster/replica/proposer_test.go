package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	commandv1 "trivet/proto/trivet/command/v1"
)

// scriptedRaft takes entries and answers them when the test says so. A result's
// revision is the command's place in the log.
type scriptedRaft struct {
	mu       sync.Mutex
	entries  []*commandv1.Entry
	futures  []*scriptedFuture
	revision uint64
	refuse   error
}

type scriptedFuture struct {
	raft.ApplyFuture
	done    chan struct{}
	err     error
	results []*commandv1.Result
}

func (f *scriptedFuture) Error() error  { <-f.done; return f.err }
func (f *scriptedFuture) Response() any { return f.results }

func (r *scriptedRaft) Apply(data []byte, _ time.Duration) raft.ApplyFuture {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &scriptedFuture{done: make(chan struct{})}
	if r.refuse != nil {
		f.err = r.refuse
		close(f.done)
		return f
	}
	e := new(commandv1.Entry)
	if err := proto.Unmarshal(data, e); err != nil {
		panic(err)
	}
	r.entries = append(r.entries, e)
	for range e.GetCommands() {
		r.revision++
		f.results = append(f.results, &commandv1.Result{Revision: r.revision})
	}
	r.futures = append(r.futures, f)
	return f
}

// answer ends the oldest entry that is under way and says whether there was one.
func (r *scriptedRaft) answer(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.futures) == 0 {
		return false
	}
	f := r.futures[0]
	r.futures = r.futures[1:]
	f.err = err
	close(f.done)
	return true
}

// answerAll ends entries until none comes any more.
func (r *scriptedRaft) answerAll() {
	for r.answer(nil) {
		synctest.Wait()
	}
}

func keys(e *commandv1.Entry) []string {
	var out []string
	for _, c := range e.GetCommands() {
		out = append(out, c.GetPutConfig().GetKey())
	}
	return out
}

// outcome is what a call of propose returned.
type outcome struct {
	results []*commandv1.Result
	err     error
}

// submit proposes in the background and returns once the proposal is queued.
func submit(ctx context.Context, p *proposer, cmds ...*commandv1.Command) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		res, err := p.propose(ctx, cmds)
		out <- outcome{res, err}
	}()
	synctest.Wait()
	return out
}

func TestQueuedCommandsShareEntriesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(scriptedRaft)
		p := newProposer(r, new(stampClock))
		defer p.close()
		const n = 1000
		var outs []<-chan outcome
		for i := range n {
			outs = append(outs, submit(t.Context(), p, put(fmt.Sprintf("key-%04d", i), nil)))
		}
		// Two entries of one command each are under way, the rest waits.
		if got := len(r.entries); got != entriesInFlight {
			t.Fatalf("%d entries are under way, want %d", got, entriesInFlight)
		}
		r.answerAll()
		var got []string
		for i, e := range r.entries {
			k := keys(e)
			if len(k) > entryCommands {
				t.Errorf("entry %d has %d commands, the limit is %d", i, len(k), entryCommands)
			}
			got = append(got, k...)
		}
		var want []string
		for i := range n {
			want = append(want, fmt.Sprintf("key-%04d", i))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("commands are missing or out of order (-want +got):\n%s", d)
		}
		if want := entriesInFlight + 4; len(r.entries) != want {
			t.Errorf("%d commands took %d entries, want %d", n, len(r.entries), want)
		}
		for i, out := range outs {
			o := <-out
			if o.err != nil || len(o.results) != 1 || o.results[0].GetRevision() != uint64(i+1) {
				t.Fatalf("proposal %d: %v, %v; want the result of its own command", i, o.results, o.err)
			}
		}
	})
}

func TestEntriesAreBoundedInBytesAndProposalsStayWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(scriptedRaft)
		p := newProposer(r, new(stampClock))
		defer p.close()
		for range entriesInFlight {
			submit(t.Context(), p, put("first", nil))
		}
		big := bytes.Repeat([]byte("x"), 100<<10)
		// Two of three fit into an entry, the third starts the next; a pair is
		// never torn apart, and its results are those of its own commands.
		submit(t.Context(), p, put("a", big))
		submit(t.Context(), p, put("b", big))
		pair := submit(t.Context(), p, put("c", big), put("d", nil))
		submit(t.Context(), p, put("e", nil))
		// Alone, a command may be larger than the aim for entries.
		submit(t.Context(), p, put("f", bytes.Repeat([]byte("x"), 300<<10)))
		submit(t.Context(), p, put("g", nil))
		r.answerAll()
		var got [][]string
		for _, e := range r.entries {
			got = append(got, keys(e))
		}
		want := [][]string{{"first"}, {"first"}, {"a", "b"}, {"c", "d", "e"}, {"f"}, {"g"}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("entries (-want +got):\n%s", d)
		}
		o := <-pair
		if d := cmp.Diff([]*commandv1.Result{{Revision: 5}, {Revision: 6}}, o.results, protocmp.Transform()); d != "" || o.err != nil {
			t.Errorf("results of the pair: %v (-want +got):\n%s", o.err, d)
		}
	})
}

func TestFullQueueIsBusyAndRecovers(t *testing.T) {
	for name, c := range map[string]struct {
		value []byte
		fit   int
	}{
		"by commands": {nil, entriesInFlight + queueCommands},
		"by bytes":    {bytes.Repeat([]byte("x"), 500<<10), 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := new(scriptedRaft)
				p := newProposer(r, new(stampClock))
				defer p.close()
				var outs []<-chan outcome
				for range c.fit {
					outs = append(outs, submit(t.Context(), p, put("k", c.value)))
				}
				if _, err := p.propose(t.Context(), []*commandv1.Command{put("k", c.value)}); !errors.Is(err, ErrBusy) {
					t.Errorf("one more than fits: %v, want ErrBusy", err)
				}
				if got := p.refused.Load(); got != 1 {
					t.Errorf("%d refusals were counted, want 1", got)
				}
				r.answerAll()
				for i, out := range outs {
					if o := <-out; o.err != nil {
						t.Fatalf("proposal %d that was taken: %v", i, o.err)
					}
				}
				if got := p.batcher.bytes; got != 0 {
					t.Errorf("%d bytes are still counted as queued", got)
				}
				late := submit(t.Context(), p, put("k", c.value))
				r.answerAll()
				if o := <-late; o.err != nil {
					t.Errorf("after the queue drained: %v", o.err)
				}
			})
		})
	}
}

func TestTooLargeCommandIsRefused(t *testing.T) {
	p := newProposer(new(scriptedRaft), new(stampClock))
	defer p.close()
	_, err := p.propose(t.Context(), []*commandv1.Command{put("k", make([]byte, maxCommandBytes))})
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(maxCommandBytes)) {
		t.Errorf("got %v, want ErrTooLarge with the limit", err)
	}
}

func TestNothingIsProposedForNoCommands(t *testing.T) {
	r := new(scriptedRaft)
	p := newProposer(r, new(stampClock))
	defer p.close()
	if res, err := p.propose(t.Context(), nil); res != nil || err != nil {
		t.Errorf("got %v, %v", res, err)
	}
	if len(r.entries) != 0 {
		t.Errorf("%d entries were written", len(r.entries))
	}
}

func TestAbandonedCommandMayBeProposedAgainWhileItIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(scriptedRaft)
		p := newProposer(r, new(stampClock))
		defer p.close()
		cmd := put("k", []byte("v"))
		cmd.RequestId = &commandv1.RequestId{Writer: "w", Number: 7, Lowest: 3}
		cmd.ExpectedTerm, cmd.Identity, cmd.StampedId = 5, "me", "chosen"
		before := proto.CloneOf(cmd)
		ctx, cancel := context.WithCancel(t.Context())
		first := submit(ctx, p, cmd)
		cancel()
		if o := <-first; !errors.Is(o.err, ErrUnknownOutcome) || !errors.Is(o.err, context.Canceled) {
			t.Fatalf("an abandoned proposal ends with %v, want ErrUnknownOutcome and the cause", o.err)
		}
		second := submit(t.Context(), p, cmd)
		r.answerAll()
		if o := <-second; o.err != nil {
			t.Fatal(o.err)
		}
		if d := cmp.Diff(before, cmd, protocmp.Transform()); d != "" {
			t.Errorf("the caller's command was changed (-want +got):\n%s", d)
		}
		if len(r.entries) != 2 {
			t.Fatalf("%d entries, want 2: the abandoned one too was under way", len(r.entries))
		}
		for _, e := range r.entries {
			got := e.GetCommands()[0]
			if got.GetTime() == 0 {
				t.Error("a command reached the log without a time")
			}
			got.Time = 0
			if d := cmp.Diff(before, got, protocmp.Transform()); d != "" {
				t.Errorf("the log has another command (-want +got):\n%s", d)
			}
		}
	})
}

func TestCommandsGetFreshIDsAndTheSameTimeWithinAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(scriptedRaft)
		p := newProposer(r, new(stampClock))
		defer p.close()
		submit(t.Context(), p, put("a", nil), put("b", nil))
		r.answerAll()
		c := r.entries[0].GetCommands()
		if c[0].GetStampedId() == "" || c[0].GetStampedId() == c[1].GetStampedId() {
			t.Errorf("ids %q and %q are not fresh", c[0].GetStampedId(), c[1].GetStampedId())
		}
		if c[0].GetTime() != time.Now().UnixNano() || c[1].GetTime() != c[0].GetTime() {
			t.Errorf("times %d and %d, want both now", c[0].GetTime(), c[1].GetTime())
		}
	})
}

func TestCloseWhileProposing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(scriptedRaft)
		p := newProposer(r, new(stampClock))
		var outs []<-chan outcome
		for range 100 {
			outs = append(outs, submit(t.Context(), p, put("k", nil)))
		}
		closed := make(chan struct{})
		go func() { p.close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("close did not wait for what is under way")
		default:
		}
		for i, out := range outs {
			// Those in flight can only be unknown; of the others, both is true.
			o := <-out
			unknown, refused := errors.Is(o.err, ErrUnknownOutcome), errors.Is(o.err, ErrClosed)
			if i < entriesInFlight && !unknown || !unknown && !refused {
				t.Errorf("proposal %d ends with %v", i, o.err)
			}
		}
		r.answerAll()
		<-closed
		if _, err := p.propose(t.Context(), []*commandv1.Command{put("k", nil)}); !errors.Is(err, ErrClosed) || errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("after close: %v, want ErrClosed", err)
		}
		if len(r.entries) != entriesInFlight {
			t.Errorf("%d entries were written, want those of before the close, %d", len(r.entries), entriesInFlight)
		}
	})
}

// TestErrorsSayWhetherItHappened: the difference decides whether a command may
// be given another number.
func TestErrorsSayWhetherItHappened(t *testing.T) {
	for _, c := range []struct {
		raft error
		want error
	}{
		{raft.ErrNotLeader, ErrNotLeader},
		{raft.ErrLeadershipTransferInProgress, ErrNotLeader},
		{raft.ErrEnqueueTimeout, ErrNotLeader},
		{raft.ErrLeadershipLost, ErrUnknownOutcome},
		{raft.ErrAbortedByRestore, ErrUnknownOutcome},
		{raft.ErrRaftShutdown, ErrUnknownOutcome},
		{errors.New("disk"), ErrUnknownOutcome},
	} {
		p := newProposer(&scriptedRaft{refuse: c.raft}, new(stampClock))
		_, err := p.propose(t.Context(), []*commandv1.Command{put("k", nil)})
		p.close()
		if !errors.Is(err, c.want) || !errors.Is(err, c.raft) {
			t.Errorf("%v became %v, want %v with the cause", c.raft, err, c.want)
		}
	}
}

func TestMissingResultsAreAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(scriptedRaft)
		p := newProposer(r, new(stampClock))
		defer p.close()
		out := submit(t.Context(), p, put("k", nil))
		r.futures[0].results = nil
		r.answerAll()
		if o := <-out; !errors.Is(o.err, ErrUnknownOutcome) {
			t.Errorf("got %v, want ErrUnknownOutcome", o.err)
		}
	})
}
