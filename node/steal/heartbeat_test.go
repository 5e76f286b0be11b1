package steal

import (
	"net/netip"
	"testing"
	"time"

	"trivet/internal/netns"
)

// promise is P4: connections started so long after the traffic process died
// or hung reach the app.
const promise = time.Second

// TestHeartbeatDecides writes beats of chosen ages.
func TestHeartbeatDecides(t *testing.T) {
	r := newBareRig(t, Options{StaleAfter: time.Minute})
	r.worker = r.adopt(t)
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	r.arm(t, 8080)
	if got := r.whoAnswers(t, r.v4(8080)); got != "app" {
		t.Errorf("never beaten: %s answers", got)
	}
	for _, tc := range []struct {
		age  time.Duration
		want string
	}{
		{0, "steal"},
		{30 * time.Second, "steal"},
		{61 * time.Second, "app"},
		{-30 * time.Second, "steal"}, // another processor's clock
		{-2 * time.Minute, "app"},    // would never grow old
		{0, "steal"},
	} {
		now, err := monotonic()
		if err != nil {
			t.Fatal(err)
		}
		// The machine may be up for less than the age.
		if tc.age > time.Duration(now) {
			t.Skipf("the machine is up for less than %v", tc.age)
		}
		if err := r.beat.put(uint64(int64(now) - int64(tc.age))); err != nil {
			t.Fatal(err)
		}
		for _, dst := range []netip.AddrPort{r.v4(8080), r.v6(8080)} {
			if got := r.whoAnswers(t, dst); got != tc.want {
				t.Errorf("beat of age %v, %v: %s answers, want %s", tc.age, dst, got, tc.want)
			}
		}
	}
	if n := counted(t, r.worker, func(s Stats) uint64 { return s.Stale }); n < 5 {
		t.Errorf("%d stale, want 5", n)
	}
}

func TestSilentProcessLosesNewConnectionsToTheApp(t *testing.T) {
	r := newBareRig(t, Options{})
	r.worker = r.adopt(t)
	r.app(t, "tcp", ":8080", "app")
	r.arm(t, 8080)
	// It beats once and never accepts: a hang.
	if err := r.worker.Beat(); err != nil {
		t.Fatal(err)
	}
	r.wantAppSince(t, time.Now(), r.v4(8080))
	r.wantAppSince(t, time.Now().Add(-promise), r.v6(8080))
}

// wantAppSince visits until the app answers, and fails when it does not answer
// a visit that started later than promised after the last sign of life.
func (r *rig) wantAppSince(t *testing.T, since time.Time, dst netip.AddrPort) {
	t.Helper()
	for {
		started := time.Now()
		got, err := r.tryVisit(t, dst)
		if got == "app" {
			return
		}
		if late := started.Sub(since); late > promise {
			t.Fatalf("a visit of %v, %v after the last beat, got %q, %v", dst, late, got, err)
		}
	}
}

// tryVisit makes one visit that may get no answer.
func (r *rig) tryVisit(t *testing.T, dst netip.AddrPort) (string, error) {
	t.Helper()
	conn, err := netns.Dial(t.Context(), r.visitor.NS, "tcp", dst.String(), nil)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	// Nobody but a held connection takes so long.
	return tryAsk(conn, 100*time.Millisecond)
}

func TestBeatAge(t *testing.T) {
	require(t)
	b, err := NewBeat()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if age, ok, err := b.Age(); ok || err != nil {
		t.Errorf("never written: %v, %v, %v", age, ok, err)
	}
	f, err := b.File()
	if err != nil {
		t.Fatal(err)
	}
	writer, err := AdoptBeat(f)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := writer.Write(); err != nil {
		t.Fatal(err)
	}
	if age, ok, err := b.Age(); !ok || err != nil || age < 0 || age > answerTimeout {
		t.Errorf("just written: %v, %v, %v", age, ok, err)
	}
}

// TestOneBeatServesAllAttachments has two pods and one traffic process.
func TestOneBeatServesAllAttachments(t *testing.T) {
	a := newBareRig(t, Options{StaleAfter: time.Hour})
	b := newBareRig(t, Options{StaleAfter: time.Hour})
	if err := b.att.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.att, err = Attach(b.pod.NS, a.beat, Options{StaleAfter: time.Hour}); err != nil {
		t.Fatal(err)
	}
	defer b.att.Close()
	for _, r := range []*rig{a, b} {
		r.worker = r.adopt(t)
		r.arm(t, 8080)
		answer(t, r.worker.Listener(), "steal")
	}
	if err := a.worker.Beat(); err != nil {
		t.Fatal(err)
	}
	if got := b.whoAnswers(t, b.v4(8080)); got != "steal" {
		t.Errorf("%s answers", got)
	}
}
