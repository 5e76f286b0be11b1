package compose

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"

	"trivet/test/systest"
)

// interrupted is what a command exits with after Ctrl-C.
const interrupted = 130

// answeredBy waits until a visitor of the sample is answered by somebody.
func (c *composition) answeredBy(who, when string) {
	c.t.Helper()
	visitor := &http.Client{Timeout: askTime, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return c.dial(ctx, address) },
	}}
	systest.Eventually(c.t, settle, who+" answers the visitors "+when, func() error {
		resp, err := visitor.Get("http://" + c.visit + "/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && !strings.HasPrefix(string(body), who) {
			err = fmt.Errorf("the answer is %q", body)
		}
		return err
	})
}

// intercept runs `trivet intercept create` in front of something that answers
// with text, until the test ends.
func (c *composition) intercept(text string) {
	c.t.Helper()
	ln := c.listen()
	local := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, text) }))
	local.Listener.Close()
	local.Listener = ln
	local.Start()
	c.t.Cleanup(local.Close)
	p := systest.Launch(c.t, systest.Command{
		Name: "intercept", Path: systest.Binary(c.t), Net: c.ns, Env: []string{"TRIVET_CONFIG=" + c.contexts},
		Args: []string{"--context", "developer", "intercept", "create", "mine", "--workload", "sample", "--port", portOf(ln) + ":http"},
	})
	c.t.Cleanup(func() {
		if err := p.Signal(syscall.SIGINT); err != nil {
			c.t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), settle)
		defer cancel()
		if code, err := p.Wait(ctx); err != nil || code != interrupted {
			c.t.Errorf("the intercept ended with %d, %v:\n%s", code, err, tail(p.ErrOut()))
		}
	})
}
