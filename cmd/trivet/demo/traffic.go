package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"trivet/cmd/trivet/devenv"
)

// requestTimeout is how long a visitor waits for an answer.
const requestTimeout = 5 * time.Second

// localAnswer is what the local process answers.
const localAnswer = "local process"

// request is one request of the visitor.
type request struct {
	start, end time.Time
	// by says who answered: "app", "local" or "".
	by  string
	err error
}

func visitor() *http.Client {
	return &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		// Every request is a new connection: established ones prove nothing
		// about where new ones go.
		DisableKeepAlives: true,
		DialContext:       (&net.Dialer{Timeout: requestTimeout}).DialContext,
	}}
}

// visit sends one request.
func visit(ctx context.Context, hc *http.Client, url string) request {
	r := request{start: time.Now()}
	body, err := get(ctx, hc, url)
	r.end, r.err = time.Now(), err
	switch {
	case strings.HasPrefix(body, devenv.SampleAnswer):
		r.by = byApp
	case strings.HasPrefix(body, localAnswer):
		r.by = byLocal
	case err == nil:
		r.err = fmt.Errorf("unknown answer %q", body)
	}
	return r
}

const (
	byApp   = "app"
	byLocal = "local"
)

func get(ctx context.Context, hc *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	return string(body), err
}

// load sends requests from a few visitors until it is stopped.
type load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu  sync.Mutex
	all []request
}

const visitors = 4

func startLoad(urls []string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel}
	for i := range visitors {
		url := urls[i%len(urls)]
		l.wg.Go(func() {
			hc := visitor()
			for ctx.Err() == nil {
				// A request that is under way is finished, so that nothing is
				// counted as lost because the demo moved on.
				r := visit(context.WithoutCancel(ctx), hc, url)
				l.mu.Lock()
				l.all = append(l.all, r)
				l.mu.Unlock()
			}
		})
	}
	return l
}

// count is the number of requests answered so far by who started after a time.
func (l *load) count(by string, after time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, r := range l.all {
		if r.by == by && r.err == nil && r.start.After(after) {
			n++
		}
	}
	return n
}

// stop ends the load and returns every request.
func (l *load) stop() []request {
	l.cancel()
	l.wg.Wait()
	return l.all
}

// serveLocal runs the process on the developer's machine that the intercepted
// requests are meant for. It lives in this process, on a port of its own.
func serveLocal() (addr string, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{ReadHeaderTimeout: requestTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s, %s %s\n", localAnswer, r.Method, r.URL.Path)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	return ln.Addr().String(), func() { srv.Close(); <-done }, nil
}
