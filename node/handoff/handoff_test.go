package handoff_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"trivet/node/handoff"
	"trivet/node/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHolder answers as a holder would.
type fakeHolder struct {
	welcome handoff.Welcome
	shared  bool
	attach  func(context.Context, handoff.Request) (handoff.Attached, []*os.File, error)

	mu       sync.Mutex
	detached []string
	beats    int
	statuses []handoff.Status
	told     chan struct{} // one for each beat and status
}

func (h *fakeHolder) Welcome(int) (handoff.Welcome, *os.File, error) {
	if !h.shared {
		return h.welcome, nil, nil
	}
	f, err := os.Open(os.DevNull)
	return h.welcome, f, err
}

func (h *fakeHolder) Attach(ctx context.Context, r handoff.Request) (handoff.Attached, []*os.File, error) {
	return h.attach(ctx, r)
}

func (h *fakeHolder) Detach(uid string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.detached = append(h.detached, uid)
	if uid == "stuck" {
		return errors.New("it is stuck")
	}
	return nil
}

func (h *fakeHolder) Beat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats++
	h.told <- struct{}{}
}

func (h *fakeHolder) Status(s handoff.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.statuses = append(h.statuses, s)
	h.told <- struct{}{}
}

// pair connects a client to the holder. Both end with the test.
func pair(t *testing.T, h *fakeHolder, metrics func(io.Writer) error) (*handoff.Server, *handoff.Client, handoff.Welcome, *os.File) {
	t.Helper()
	h.told = make(chan struct{}, 16)
	server, socket, err := handoff.Pair()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(t.Context(), h); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	client, welcome, beat, err := handoff.Connect(socket, metrics)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := client.Run(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		client.Close()
		server.Close()
		wg.Wait()
	})
	return server, client, welcome, beat
}

func TestWelcomeBringsEverything(t *testing.T) {
	t.Parallel()
	want := handoff.Welcome{
		Version: handoff.Version, BootID: "boot", Backend: "sk_lookup", Held: []string{"a", "b"},
		SharedBeat: true, Settings: json.RawMessage(`{"x":1}`),
	}
	_, _, got, beat := pair(t, &fakeHolder{welcome: want, shared: true}, nil)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("welcome (-want +got):\n%s", d)
	}
	if beat == nil {
		t.Fatal("no descriptor came with the welcome")
	}
	beat.Close()
}

func TestDescriptorsArriveInOrder(t *testing.T) {
	t.Parallel()
	h := &fakeHolder{}
	h.attach = func(_ context.Context, r handoff.Request) (handoff.Attached, []*os.File, error) {
		if d := cmp.Diff(handoff.Request{UID: "u", Net: workload.Net{Path: "/x"}, Fronts: []string{"127.0.0.1:1"}}, r); d != "" {
			return handoff.Attached{}, nil, fmt.Errorf("request (-want +got):\n%s", d)
		}
		var files []*os.File
		for i := range 5 {
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				return handoff.Attached{}, files, err
			}
			fmt.Fprint(f, i)
			files = append(files, f)
		}
		return handoff.Attached{Backend: "sk_lookup"}, files, nil
	}
	_, client, _, _ := pair(t, h, nil)
	attached, files, err := client.Attach(t.Context(), handoff.Request{
		UID: "u", Net: workload.Net{Path: "/x"}, Fronts: []string{"127.0.0.1:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if attached.Backend != "sk_lookup" || len(files) != 5 {
		t.Fatalf("got %v with %d descriptors", attached, len(files))
	}
	for i, f := range files {
		buf := make([]byte, 1)
		if _, err := f.ReadAt(buf, 0); err != nil || string(buf) != fmt.Sprint(i) {
			t.Errorf("descriptor %d reads %q, %v", i, buf, err)
		}
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d would reach a child: %v, %v", i, flags, err)
		}
		f.Close()
	}
}

func TestRefusalsReachTheAsker(t *testing.T) {
	t.Parallel()
	h := &fakeHolder{attach: func(context.Context, handoff.Request) (handoff.Attached, []*os.File, error) {
		return handoff.Attached{}, nil, errors.New("no such namespace")
	}}
	_, client, _, _ := pair(t, h, nil)
	if _, _, err := client.Attach(t.Context(), handoff.Request{UID: "u"}); err == nil || err.Error() != "no such namespace" {
		t.Errorf("attach: %v", err)
	}
	if err := client.Detach(t.Context(), "u"); err != nil {
		t.Errorf("detach: %v", err)
	}
	if err := client.Detach(t.Context(), "stuck"); err == nil || err.Error() != "it is stuck" {
		t.Errorf("detach: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.detached, []string{"u", "stuck"}) {
		t.Errorf("detached are %v", h.detached)
	}
}

func TestBeatsAndStatusAreTold(t *testing.T) {
	t.Parallel()
	h := &fakeHolder{}
	_, client, _, _ := pair(t, h, nil)
	if err := errors.Join(client.Beat(), client.Beat(), client.Status(handoff.Status{Connected: true, Agents: 3})); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-h.told
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.beats != 2 || len(h.statuses) != 1 || h.statuses[0] != (handoff.Status{Connected: true, Agents: 3}) {
		t.Errorf("told were %d beats and %v", h.beats, h.statuses)
	}
}

func TestMetricsOfAnyLengthComeThroughThePipe(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("metric 1\n", 1<<16)
	server, _, _, _ := pair(t, &fakeHolder{}, func(w io.Writer) error {
		_, err := io.WriteString(w, long)
		return err
	})
	got, err := server.Metrics(t.Context())
	if err != nil || string(got) != long {
		t.Errorf("got %d bytes, %v; want %d", len(got), err, len(long))
	}
}

func TestMetricsOfAHungProcessAreGivenUp(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	server, _, _, _ := pair(t, &fakeHolder{}, func(io.Writer) error {
		<-release
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := server.Metrics(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
}

func TestEndOfTheHolderIsSeen(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	hold := make(chan struct{})
	h := &fakeHolder{attach: func(context.Context, handoff.Request) (handoff.Attached, []*os.File, error) {
		close(asked)
		<-hold
		return handoff.Attached{}, nil, errors.New("too late")
	}}
	h.told = make(chan struct{}, 16)
	server, socket, err := handoff.Pair()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	// The holder is gone before it can answer, so what Serve says is its own.
	wg.Go(func() { _ = server.Serve(t.Context(), h) })
	client, _, _, err := handoff.Connect(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := client.Run(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	wg.Go(func() {
		if _, _, err := client.Attach(context.Background(), handoff.Request{UID: "u"}); !errors.Is(err, handoff.ErrGone) {
			t.Errorf("attach: %v", err)
		}
	})
	<-asked
	server.Close()
	<-client.Done()
	close(hold)
	wg.Wait()
	if err := client.Detach(context.Background(), "u"); !errors.Is(err, handoff.ErrGone) {
		t.Errorf("detach: %v", err)
	}
	client.Close()
}

func TestAnotherVersionIsTurnedAway(t *testing.T) {
	t.Parallel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "holder")
	defer theirs.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		if _, err := unix.Read(fds[1], buf); err != nil {
			t.Error(err)
		}
		if err := unix.Sendto(fds[1], []byte(`{"kind":"welcome","welcome":{"version":99,"settings":{}}}`), 0, nil); err != nil {
			t.Error(err)
		}
	})
	_, _, _, err = handoff.Connect(os.NewFile(uintptr(fds[0]), "traffic"), nil)
	wg.Wait()
	if err == nil || !strings.Contains(err.Error(), "holder speaks version 99") {
		t.Errorf("error is %v", err)
	}
}
