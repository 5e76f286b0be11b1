package steal

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"trivet/internal/errs"
	"trivet/internal/netns"
)

func TestCloseGivesThePodBack(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	r.arm(t, 8080)
	dsts := []netip.AddrPort{r.v4(8080), r.v6(8080)}
	stolen := r.visit(t, dsts[0])
	if got := ask(t, stolen); got != "steal" {
		t.Fatalf("%s answers", got)
	}
	// The worker is still there, with its listener and its armed keys.
	if err := r.att.Close(); err != nil {
		t.Fatal(err)
	}
	for _, dst := range dsts {
		if got := r.whoAnswers(t, dst); got != "app" {
			t.Errorf("%v: %s answers", dst, got)
		}
	}
	if keys, err := r.worker.ArmedKeys(); err != nil || len(keys) != 0 {
		t.Errorf("armed %v (%v), want none", keys, err)
	}
	r.arm(t, 8080) // moves nothing: the program is gone
	if got := r.whoAnswers(t, dsts[0]); got != "app" {
		t.Errorf("armed after the close: %s answers", got)
	}
	if got := ask(t, stolen); got != "steal" {
		t.Errorf("connection from before: %s answers", got)
	}
	if err := r.att.Close(); err == nil {
		t.Error("the second close was no error")
	}
}

func TestCloseResetsWhatNobodyAccepted(t *testing.T) {
	r := newBareRig(t, Options{StaleAfter: time.Hour})
	w := r.adopt(t)
	r.worker = w
	if err := w.Beat(); err != nil {
		t.Fatal(err)
	}
	r.arm(t, 8080)
	waiting := r.visit(t, r.v4(8080))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.att.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tryAsk(waiting, answerTimeout); !errors.Is(err, syscall.ECONNRESET) &&
		!errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestTheMachinesOwnNamespaceIsRefused(t *testing.T) {
	require(t)
	beat, err := NewBeat()
	if err != nil {
		t.Fatal(err)
	}
	defer beat.Close()
	host, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	att, err := Attach(host, beat, Options{})
	if !errors.Is(err, ErrHostNetwork) {
		if err == nil {
			att.Close()
		}
		t.Fatalf("got %v, want ErrHostNetwork", err)
	}
	if e := errs.From(err); e.Reason != "HOST_NETWORK" || e.Hint == "" {
		t.Errorf("reason %q, hint %q", e.Reason, e.Hint)
	}
	// Nothing is armed, so this moves nobody's traffic.
	att, err = Attach(host, beat, Options{AllowHost: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := att.Close(); err != nil {
		t.Error(err)
	}
}

// TestHandoverKeepsStealing is the holder re-executing itself: everything it
// had is gone but for the descriptors it handed over.
func TestHandoverKeepsStealing(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	r.arm(t, 8080)
	h, err := r.att.Handover()
	if err != nil {
		t.Fatal(err)
	}
	waiting := r.visit(t, r.v4(8080))
	r.att.abandon()
	if err := r.worker.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := HandoverFrom(h.List())
	if err != nil {
		t.Fatal(err)
	}
	if r.att, err = Resume(again); err != nil {
		t.Fatal(err)
	}
	defer r.att.Close()
	if r.att.Namespace() != r.pod.NS.ID() {
		t.Errorf("resumed in %v, want %v", r.att.Namespace(), r.pod.NS.ID())
	}
	r.worker = r.adopt(t)
	answer(t, r.worker.Listener(), "steal")
	if got := ask(t, waiting); got != "steal" {
		t.Errorf("connection that waited: %s answers", got)
	}
	if got := r.whoAnswers(t, r.v6(8080)); got != "steal" {
		t.Errorf("new connection: %s answers", got)
	}
	if err := r.att.Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.whoAnswers(t, r.v4(8080)); got != "app" {
		t.Errorf("after the close: %s answers", got)
	}
}

func TestWrongDescriptorsAreRefused(t *testing.T) {
	r := newRig(t)
	before := openFiles(t)
	for i := range FileCount {
		for j := range i {
			files, err := r.att.Files()
			if err != nil {
				t.Fatal(err)
			}
			list := files.List()
			list[i], list[j] = list[j], list[i]
			if files, err = FilesFrom(list); err != nil {
				t.Fatal(err)
			}
			if w, err := Adopt(files); err == nil {
				w.Close()
				t.Errorf("descriptors %d and %d may be swapped", i, j)
			}
		}
		files, err := r.att.Files()
		if err != nil {
			t.Fatal(err)
		}
		list := files.List()
		list[i].Close()
		list[i] = nil
		if files, err = FilesFrom(list); err != nil {
			t.Fatal(err)
		}
		if w, err := Adopt(files); err == nil {
			w.Close()
			t.Errorf("descriptor %d may be missing", i)
		}
	}
	if _, err := FilesFrom(make([]*os.File, 3)); err == nil {
		t.Error("three descriptors are enough")
	}
	if _, err := Resume(Handover{}); err == nil {
		t.Error("resumed from nothing")
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func TestNoDescriptorIsLeaked(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	round := func() {
		att, err := Attach(r.pod.NS, r.beat, Options{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := att.Handover()
		if err != nil {
			t.Fatal(err)
		}
		h.Link.Close()
		w, err := Adopt(h.Files)
		if err != nil {
			t.Fatal(err)
		}
		for _, dst := range []netip.AddrPort{r.v4(8080), r.v4(9090)} {
			if conn, err := w.DialApp(t.Context(), dst); err == nil {
				conn.Close()
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := att.Close(); err != nil {
			t.Fatal(err)
		}
		if err := Probe(); err != nil {
			t.Fatal(err)
		}
	}
	round() // what the runtime and libraries open once
	before := openFiles(t)
	for range 10 {
		round()
	}
	eventually(t, func() bool { return openFiles(t) <= before }, "descriptors stay open")
}

// openFiles returns how many descriptors this process has.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// eventually polls for what the outside world does without telling.
func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	deadline := time.After(answerTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(what)
		}
	}
}

func TestUnsupportedIsTyped(t *testing.T) {
	for _, cause := range []error{syscall.EPERM, syscall.ENOSYS} {
		err := unsupported("feature", cause)
		var typed *ErrUnsupported
		if !errors.As(err, &typed) || typed.Feature != "feature" {
			t.Errorf("%v became %v, want *ErrUnsupported", cause, err)
		}
		if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, cause) {
			t.Errorf("%v matches neither errors.ErrUnsupported nor its cause", err)
		}
		if again := unsupported("other", err); again != err {
			t.Errorf("wrapped twice: %v", again)
		}
	}
	for _, defect := range []error{syscall.EACCES, syscall.EINVAL, io.EOF, nil} {
		if err := unsupported("feature", defect); err != defect {
			t.Errorf("%v became %v", defect, err)
		}
	}
}

func BenchmarkAttach(b *testing.B) {
	require(b)
	ns, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	beat, err := NewBeat()
	if err != nil {
		b.Fatal(err)
	}
	defer beat.Close()
	for b.Loop() {
		att, err := Attach(ns, beat, Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := att.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
