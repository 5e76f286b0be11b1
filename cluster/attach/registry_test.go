package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"trivet/proto/telepresence/manager"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// next reads one batch of changes, sorted.
func next(t *testing.T, s *Subscription) []Attachment {
	t.Helper()
	out, err := s.Next(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(out, func(a, b Attachment) int { return strings.Compare(a.SessionID, b.SessionID) })
	return out
}

func expect(t *testing.T, s *Subscription, want ...Attachment) {
	t.Helper()
	if d := cmp.Diff(want, next(t, s)); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
}

func TestSubscriptionStartsWithWhatIsOpenAndFollows(t *testing.T) {
	r := NewRegistry()
	d := r.OpenDial("a")
	closeWatch := r.OpenWatch("b")
	s := r.Subscribe()
	defer s.Close()
	expect(t, s, Attachment{SessionID: "a", DialStreams: 1}, Attachment{SessionID: "b", WatchStreams: 1})
	second := r.OpenDial("a")
	expect(t, s, Attachment{SessionID: "a", DialStreams: 2})
	d.Close(true)
	d.Close(true) // once is enough
	expect(t, s, Attachment{SessionID: "a", DialStreams: 1})
	second.Close(true)
	expect(t, s, Attachment{SessionID: "a", EndedByPeer: true})
	closeWatch(false)
	closeWatch(true) // once is enough
	expect(t, s, Attachment{SessionID: "b"})
}

func TestEmptyRegistryTellsSoAtOnce(t *testing.T) {
	s := NewRegistry().Subscribe()
	defer s.Close()
	if got := next(t, s); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// TestWhoEndedTheLastStream: only the last one counts, because as long as one
// is open the peer is there.
func TestWhoEndedTheLastStream(t *testing.T) {
	for _, c := range []struct {
		first, last, want bool
	}{{true, true, true}, {true, false, false}, {false, true, true}, {false, false, false}} {
		r := NewRegistry()
		d, w := r.OpenDial("a"), r.OpenWatch("a")
		s := r.Subscribe()
		next(t, s)
		d.Close(c.first)
		expect(t, s, Attachment{SessionID: "a", WatchStreams: 1})
		w(c.last)
		expect(t, s, Attachment{SessionID: "a", EndedByPeer: c.want})
		// A new stream is a new beginning.
		r.OpenWatch("a")(false)
		expect(t, s, Attachment{SessionID: "a"})
		s.Close()
	}
}

func TestChangesOfOneSessionMerge(t *testing.T) {
	r := NewRegistry()
	s := r.Subscribe()
	defer s.Close()
	next(t, s)
	for range 1000 {
		r.OpenDial("a").Close(true)
		r.OpenWatch("b")
	}
	expect(t, s, Attachment{SessionID: "a", EndedByPeer: true}, Attachment{SessionID: "b", WatchStreams: 1000})
	// A stream that came back before anybody looked was never away.
	d := r.OpenDial("c")
	next(t, s)
	d.Close(true)
	r.OpenDial("c")
	expect(t, s, Attachment{SessionID: "c", DialStreams: 1})
}

func TestSubscriptionEndsWithItsContextAndAfterClose(t *testing.T) {
	r := NewRegistry()
	s := r.Subscribe()
	next(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	s.Close()
	r.OpenDial("a")
	if len(s.pending) != 0 {
		t.Error("a closed subscription still collects")
	}
}

// request waits for the next dial request of a stream that has one at most.
func request(t *testing.T, d *Dialer) *manager.DialRequest {
	t.Helper()
	select {
	case <-d.Ready():
	case <-testContext(t).Done():
		t.Fatal("there is no dial request")
	}
	got := d.Take()
	if len(got) != 1 {
		t.Fatalf("%d dial requests, want 1", len(got))
	}
	return got[0]
}

func TestOffersGoToTheNewestDialStream(t *testing.T) {
	r := NewRegistry()
	if err := r.Offer("a", nil); !errors.Is(err, ErrNotAttached) {
		t.Errorf("without a stream: %v, want ErrNotAttached", err)
	}
	r.OpenWatch("a")
	if err := r.Offer("a", nil); !errors.Is(err, ErrNotAttached) {
		t.Errorf("with a watch stream only: %v, want ErrNotAttached", err)
	}
	old := r.OpenDial("a")
	newer := r.OpenDial("a")
	offer := func(id string) *manager.DialRequest {
		t.Helper()
		req := &manager.DialRequest{ConnId: []byte(id)}
		if err := r.Offer("a", req); err != nil {
			t.Fatal(err)
		}
		return req
	}
	if want, got := offer("1"), request(t, newer); got != want {
		t.Errorf("the newer stream got %v, want %v", got, want)
	}
	newer.Close(true)
	if want, got := offer("2"), request(t, old); got != want {
		t.Errorf("the older stream got %v, want %v once it is the only one", got, want)
	}
	old.Close(true)
	if err := r.Offer("a", nil); !errors.Is(err, ErrNotAttached) {
		t.Errorf("after both closed: %v, want ErrNotAttached", err)
	}
}

func TestFullQueueRefusesAndCounts(t *testing.T) {
	r := NewRegistry()
	d := r.OpenDial("a")
	for i := range dialQueue {
		if err := r.Offer("a", &manager.DialRequest{ConnId: []byte(fmt.Sprint(i))}); err != nil {
			t.Fatalf("offer %d: %v", i, err)
		}
	}
	if err := r.Offer("a", nil); !errors.Is(err, ErrQueueFull) {
		t.Errorf("got %v, want ErrQueueFull", err)
	}
	if r.Refused() != 1 {
		t.Errorf("%d refusals were counted, want 1", r.Refused())
	}
	// Other sessions do not notice.
	r.OpenDial("b")
	if err := r.Offer("b", new(manager.DialRequest)); err != nil {
		t.Error(err)
	}
	<-d.Ready()
	for i, req := range d.Take() {
		if got := string(req.GetConnId()); got != fmt.Sprint(i) {
			t.Fatalf("request %d is %s: out of order", i, got)
		}
	}
	if err := r.Offer("a", new(manager.DialRequest)); err != nil {
		t.Errorf("after the queue drained: %v", err)
	}
	request(t, d)
}

func TestConcurrentUse(t *testing.T) {
	r := NewRegistry()
	s := r.Subscribe()
	defer s.Close()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			id := fmt.Sprint(i % 3)
			for range 200 {
				d := r.OpenDial(id)
				w := r.OpenWatch(id)
				_ = r.Offer(id, new(manager.DialRequest))
				d.Close(true)
				w(true)
			}
		})
	}
	wg.Wait()
	// Everything is closed, and whatever was merged, the last word is that.
	last := make(map[string]Attachment)
	for _, a := range next(t, s) {
		last[a.SessionID] = a
	}
	for id, a := range last {
		if want := (Attachment{SessionID: id, EndedByPeer: true}); a != want {
			t.Errorf("the last word on %s is %+v", id, a)
		}
	}
	if len(r.sessions) != 0 {
		t.Errorf("%d sessions are left", len(r.sessions))
	}
}

// TestOwnersWithoutADialStream are there, but cannot be asked to dial.
func TestOwnersWithoutADialStream(t *testing.T) {
	r := NewRegistry()
	closeOwner := r.OpenOwner("a")
	s := r.Subscribe()
	defer s.Close()
	expect(t, s, Attachment{SessionID: "a", DialStreams: 1})
	if err := r.Offer("a", new(manager.DialRequest)); !errors.Is(err, ErrNotAttached) {
		t.Errorf("offer: %v, want %v", err, ErrNotAttached)
	}
	closeWatch := r.OpenWatch("a")
	expect(t, s, Attachment{SessionID: "a", DialStreams: 1, WatchStreams: 1})
	closeOwner(true)
	closeOwner(true) // once is enough
	expect(t, s, Attachment{SessionID: "a", WatchStreams: 1})
	closeWatch(true)
	expect(t, s, Attachment{SessionID: "a", EndedByPeer: true})
}
