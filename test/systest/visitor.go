package systest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"trivet/internal/netns/netnstest"
)

// Who answers a visitor.
const (
	// App is the nginx in the pod.
	App = "app"
	// Local is the process that an intercept brings traffic to.
	Local = "local"
)

// visitTimeout is how long a visitor waits: a held connection is given to the
// app after five seconds, and has to be answered then.
const visitTimeout = 8 * time.Second

// Visit is one request on a connection of its own.
type Visit struct {
	Start, End time.Time
	// By is App or Local, empty with an error.
	By  string
	Err error
}

// Took is how long the visitor waited.
func (v Visit) Took() time.Duration { return v.End.Sub(v.Start) }

// String says what became of the visit.
func (v Visit) String() string {
	if v.Err != nil {
		return fmt.Sprintf("error after %s: %v", v.Took().Round(time.Millisecond), v.Err)
	}
	return fmt.Sprintf("answered by %s after %s", v.By, v.Took().Round(time.Millisecond))
}

// Conn is a connection of a visitor, on which requests follow each other.
type Conn struct {
	net.Conn
	br *bufio.Reader
}

// Visitor makes connections from a namespace to one address. Its methods are
// safe for concurrent use.
type Visitor struct {
	ns *netnstest.Namespace
	to netip.AddrPort
}

// Dial opens a connection.
func (v *Visitor) Dial(ctx context.Context) (*Conn, error) {
	conn, err := dialFrom(ctx, v.ns, v.to)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: conn, br: bufio.NewReader(conn)}, nil
}

// Visit sends one request on a new connection.
func (v *Visitor) Visit(ctx context.Context) Visit {
	out := Visit{Start: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, visitTimeout)
	defer cancel()
	out.By, out.Err = v.visit(ctx)
	out.End = time.Now()
	return out
}

func (v *Visitor) visit(ctx context.Context) (by string, err error) {
	conn, err := v.Dial(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.Ask(ctx)
}

// Ask sends a request for index.html and returns who answered it. The
// connection stays open.
func (c *Conn) Ask(ctx context.Context) (by string, err error) {
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
	}()
	if _, err := fmt.Fprintf(c, "GET /index.html HTTP/1.1\r\nHost: shop\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	by = strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK || by != App && by != Local {
		return "", fmt.Errorf("unknown answer: %s, %q", resp.Status, body)
	}
	return by, nil
}

// Together makes n visits at the same time.
func Together(ctx context.Context, n int, visitors ...*Visitor) []Visit {
	out := make([]Visit, n)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i] = visitors[i%len(visitors)].Visit(ctx) })
	}
	wg.Wait()
	return out
}

// WantAll is nil if all visits were answered by that one, and otherwise tells
// of the first that was not.
func WantAll(visits []Visit, by string) error {
	for i, v := range visits {
		if v.Err != nil || v.By != by {
			return fmt.Errorf("visit %d of %d: %v, want it answered by %s", i+1, len(visits), v, by)
		}
	}
	return nil
}

// visitorsOfLoad is how many visitors a Load has.
const visitorsOfLoad = 4

// Load is visitors who come one after the other, until it is stopped.
type Load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu  sync.Mutex
	all []Visit // guarded by mu
}

// StartLoad starts a load, which the caller stops. A visit that is under way
// then is finished, so that nothing is lost because a test moved on.
func StartLoad(visitors ...*Visitor) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{cancel: cancel}
	for i := range visitorsOfLoad {
		v := visitors[i%len(visitors)]
		l.wg.Go(func() {
			for ctx.Err() == nil {
				visit := v.Visit(context.WithoutCancel(ctx))
				l.mu.Lock()
				l.all = append(l.all, visit)
				l.mu.Unlock()
			}
		})
	}
	return l
}

// Await waits until so many visits that began after a time were answered by
// one.
func (l *Load) Await(ctx context.Context, n int, by string, after time.Time) error {
	return Poll(ctx, func() error {
		if got := l.count(by, after); got < n {
			return fmt.Errorf("%d of %d visits were answered by %s", got, n, by)
		}
		return nil
	})
}

func (l *Load) count(by string, after time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, v := range l.all {
		if v.Err == nil && v.By == by && v.Start.After(after) {
			n++
		}
	}
	return n
}

// Stop ends the load and returns all visits. It may be called again.
func (l *Load) Stop() []Visit {
	l.cancel()
	l.wg.Wait()
	return l.all
}

// After returns the visits that began after a time.
func After(visits []Visit, at time.Time) []Visit {
	var out []Visit
	for _, v := range visits {
		if v.Start.After(at) {
			out = append(out, v)
		}
	}
	return out
}

// Longest is the time of the visit that took the longest.
func Longest(visits []Visit) time.Duration {
	var longest time.Duration
	for _, v := range visits {
		longest = max(longest, v.Took())
	}
	return longest
}
