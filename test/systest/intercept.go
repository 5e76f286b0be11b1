package systest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Event is a line of `trivet intercept create -o jsonl`.
type Event struct {
	Event      string    `json:"event"`
	Time       time.Time `json:"time"`
	ID         string    `json:"id"`
	Session    string    `json:"session"`
	Server     string    `json:"server"`
	Address    string    `json:"address"`
	Message    string    `json:"message"`
	Hint       string    `json:"hint"`
	Reason     string    `json:"reason"`
	From       string    `json:"from"`
	Connection uint64    `json:"connection"`
	BytesIn    uint64    `json:"bytesIn"`
	BytesOut   uint64    `json:"bytesOut"`
	Missed     uint64    `json:"missed"`
}

// Intercept is a `trivet intercept create` in the foreground.
type Intercept struct {
	*Process
	Name string
	// ID and Session are what the manager calls the intercept and its owner.
	ID, Session string

	events events
}

// events reads lines as they come.
type events struct {
	mu   sync.Mutex
	part []byte        // guarded by mu; of a line that is not complete
	all  []Event       // guarded by mu
	bad  error         // guarded by mu
	wake chan struct{} // guarded by mu; closed and replaced with each event
}

func (e *events) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.part = append(e.part, p...)
	for {
		line, rest, complete := bytes.Cut(e.part, []byte("\n"))
		if !complete {
			return len(p), nil
		}
		var ev Event
		if err := json.Unmarshal(line, &ev); err != nil && e.bad == nil {
			e.bad = fmt.Errorf("the command printed no event: %q: %w", line, err)
		}
		e.all, e.part = append(e.all, ev), bytes.Clone(rest)
		close(e.wake)
		e.wake = make(chan struct{})
	}
}

// Create describes an intercept.
type Create struct {
	// Name of the intercept; Port is the workload's, by name (default
	// PortName).
	Name, Port string
	// Context is whose it is (default ClientContext).
	Context string
	// Attach is the place of the server to begin with.
	Attach int
	// Local is the local port.
	Local int
	// Args come last.
	Args []string
}

func (o Create) args(c *Cluster) []string {
	port := o.Port
	if port == "" {
		port = PortName
	}
	return append([]string{
		"intercept", "create", o.Name, "--workload", Workload, "--port", strconv.Itoa(o.Local) + ":" + port,
		"--attach", c.Dev.Addresses[o.Attach], "-o", "jsonl",
	}, o.Args...)
}

// Launch starts the command and does not wait for anything. It ends with the
// test.
func (c *Cluster) Launch(t testing.TB, o Create) *Intercept {
	t.Helper()
	i := &Intercept{Name: o.Name, events: events{wake: make(chan struct{})}}
	if o.Context == "" {
		o.Context = ClientContext
	}
	i.Process = Launch(t, Command{
		Name: "intercept-" + o.Name, Path: Binary(t), Args: o.args(c), Env: c.Env(o.Context), Stdout: &i.events,
	})
	return i
}

// activeTimeout is how long an intercept may take until it is active; an agent
// has to be started for the first one.
const activeTimeout = 30 * time.Second

// Intercept starts the command and waits until the intercept is active and
// brings a visitor.
func (c *Cluster) Intercept(t testing.TB, o Create) *Intercept {
	t.Helper()
	i := c.Launch(t, o)
	created := i.Await(t, activeTimeout, "created", 0)
	i.ID, i.Session = created.ID, created.Session
	i.Await(t, activeTimeout, "active", 0)
	v := c.V4
	if o.Port == AdminPortName {
		v = c.Admin
	}
	Eventually(t, activeTimeout, "visitors reach the local process", func() error {
		return WantAll([]Visit{v.Visit(t.Context())}, Local)
	})
	return i
}

// Mark is how many events there were so far.
func (i *Intercept) Mark() int {
	i.events.mu.Lock()
	defer i.events.mu.Unlock()
	return len(i.events.all)
}

// All returns the events after the first so many.
func (i *Intercept) All(from int) []Event {
	i.events.mu.Lock()
	defer i.events.mu.Unlock()
	return slices.Clone(i.events.all[min(from, len(i.events.all)):])
}

// Events returns those of a kind after the first so many of all.
func (i *Intercept) Events(kind string, from int) []Event {
	var out []Event
	for _, e := range i.All(from) {
		if e.Event == kind {
			out = append(out, e)
		}
	}
	return out
}

// Await waits for the first event of a kind after so many, and ends the test
// if it does not come.
func (i *Intercept) Await(t testing.TB, d time.Duration, kind string, from int) Event {
	t.Helper()
	e, err := i.await(Deadline(t, d), kind, from)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (i *Intercept) await(ctx context.Context, kind string, from int) (Event, error) {
	for {
		i.events.mu.Lock()
		wake, bad := i.events.wake, i.events.bad
		i.events.mu.Unlock()
		if bad != nil {
			return Event{}, bad
		}
		running := i.Running()
		if got := i.Events(kind, from); len(got) > 0 {
			return got[0], nil
		}
		if !running {
			return Event{}, fmt.Errorf("intercept %s ended before it said %q: exit code %d, %s",
				i.Name, kind, i.cmd.ProcessState.ExitCode(), i.ErrOut())
		}
		select {
		case <-wake:
		case <-i.Done():
		case <-ctx.Done():
			return Event{}, fmt.Errorf("intercept %s did not say %q: %w", i.Name, kind, ctx.Err())
		}
	}
}

// interrupted is the exit code after Ctrl-C.
const interrupted = 130

// Interrupt is the developer's Ctrl-C; it waits for the command's end.
func (i *Intercept) Interrupt(t testing.TB) {
	t.Helper()
	if err := i.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	code, err := i.Wait(Deadline(t, stopTimeout))
	if err != nil {
		t.Fatal(err)
	}
	if code != interrupted {
		t.Fatalf("intercept %s ended with %d after Ctrl-C, want %d: %s", i.Name, code, interrupted, i.ErrOut())
	}
}
