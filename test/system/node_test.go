package system

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"trivet/test/systest"
)

// failOpen is how soon a connection must find the app again once the traffic
// process is gone.
const failOpen = time.Second

// TestNodeFails stops and kills the node's traffic process in the middle of an
// intercept, and ends the whole node in order.
func TestNodeFails(t *testing.T) {
	systest.Require(t, systest.NGINX)
	c := systest.Start(t)
	i := c.Intercept(t, systest.Create{Name: "main", Local: systest.StartLocal(t).Port})
	t.Run("the traffic process hangs", func(t *testing.T) {
		// Who comes while the process hangs unnoticed is caught in its
		// listener: the first one that the app answers is looked for.
		loseTraffic(t, c, i, syscall.SIGSTOP, func(ctx context.Context, since time.Time) (time.Duration, error) {
			v, err := first(ctx, c, func(v systest.Visit) bool { return v.By == systest.App })
			return v.Start.Sub(since), err
		})
	})
	t.Run("the traffic process dies", func(t *testing.T) {
		// The listener survives it, so the next process may serve whoever
		// waits there before the app gets to see anybody.
		loseTraffic(t, c, i, syscall.SIGKILL, func(ctx context.Context, since time.Time) (time.Duration, error) {
			v, err := first(ctx, c, func(systest.Visit) bool { return true })
			return v.End.Sub(since), err
		})
	})
	t.Run("the node is told to stop", func(t *testing.T) { stopNode(t, c) })
	// It comes back.
	c.StartNode(t, 1)
	systest.Eventually(t, settle, "visitors reach the local process again", func() error {
		return systest.WantAll(systest.Together(t.Context(), 4, c.V4, c.V6), systest.Local)
	})
	wantIntercept(t, c, i)
	answeredBy(t, c, systest.Local)
	i.Interrupt(t)
	answeredBy(t, c, systest.App)
	c.WantSameState(t)
}

// loseTraffic sends a signal to the traffic process. served waits until new
// connections are served again and says how long after the signal that was.
func loseTraffic(t *testing.T, c *systest.Cluster, i *systest.Intercept, sig syscall.Signal,
	served func(context.Context, time.Time) (time.Duration, error),
) {
	conn := open(t, c.V4)
	ask(t, conn, systest.Local)
	pid := c.TrafficPID(t)
	load := systest.StartLoad(c.V4, c.V6)
	defer load.Stop()
	signalled := time.Now()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
	took, err := served(systest.Deadline(t, settle), signalled)
	if err != nil {
		t.Fatal(err)
	}
	if took > failOpen {
		t.Errorf("new connections were served only %s after the signal, want at most %s", took, failOpen)
	}
	// A stopped process is killed by its parent after a second.
	if err := ends(t, conn, 3*time.Second); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("an intercepted connection that was open ended with %v, want a reset", err)
	}
	if err := load.Await(systest.Deadline(t, settle), 20, systest.Local, signalled.Add(took)); err != nil {
		t.Fatalf("the intercept did not come back: %v", err)
	}
	for _, v := range systest.After(load.Stop(), signalled.Add(failOpen)) {
		if v.Err != nil {
			t.Errorf("a connection that began %s after the signal: %v", v.Start.Sub(signalled), v)
		}
	}
	if got := c.TrafficPID(t); got == pid {
		t.Errorf("process %d is still the traffic process", pid)
	}
	answeredBy(t, c, systest.Local)
	wantIntercept(t, c, i)
	t.Logf("new connections were served %s after the signal", took.Round(time.Millisecond))
}

// first opens a connection every 20 ms, beside each other, and returns the
// first visit that was answered and is good.
func first(ctx context.Context, c *systest.Cluster, good func(systest.Visit) bool) (systest.Visit, error) {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan systest.Visit, 64)
	open := 0
	defer func() {
		cancel()
		for ; open > 0; open-- {
			<-answers
		}
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if open < cap(answers) {
				open++
				go func() { answers <- c.V4.Visit(ctx) }()
			}
		case v := <-answers:
			open--
			if v.Err == nil && good(v) {
				return v, nil
			}
		case <-ctx.Done():
			return systest.Visit{}, fmt.Errorf("no new connection was answered: %w", ctx.Err())
		}
	}
}

// stopNode tells the node to stop under load.
func stopNode(t *testing.T, c *systest.Cluster) {
	conn := open(t, c.V4)
	ask(t, conn, systest.Local)
	load := systest.StartLoad(c.V4, c.V6)
	defer load.Stop()
	if err := load.Await(systest.Deadline(t, settle), 20, systest.Local, time.Time{}); err != nil {
		t.Fatal(err)
	}
	signalled := time.Now()
	if err := c.Node.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// New connections go to the app while those that are open are drained.
	if err := load.Await(systest.Deadline(t, settle), 20, systest.App, signalled); err != nil {
		t.Fatal(err)
	}
	if !c.Node.Running() {
		t.Error("the node did not wait for a connection that was open")
	}
	ask(t, conn, systest.Local)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	code, err := c.Node.Wait(systest.Deadline(t, settle))
	if err != nil {
		t.Fatal(err)
	}
	if code != 0 {
		t.Errorf("the node ended with %d: %s", code, c.Node.ErrOut())
	}
	answeredBy(t, c, systest.App)
	for _, v := range systest.After(load.Stop(), signalled) {
		if v.Err != nil {
			t.Errorf("a connection that began %s after the node was told to stop: %v", v.Start.Sub(signalled), v)
		}
	}
}
