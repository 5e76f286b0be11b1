package client

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// errTooMany is the refusal of a connection beyond MaxConns.
var errTooMany = errors.New("too many connections are open")

// dialLocal connects to the process that the intercept names. The address was
// compared with those of the intercept, which is how it was found.
func (d *dials) dialLocal(ctx context.Context, it *Intercept, job dialJob) (net.Conn, error) {
	if d.open.Load() >= int64(d.s.opts.MaxConns) {
		return nil, errTooMany
	}
	ctx, cancel := context.WithTimeout(ctx, job.timeout)
	defer cancel()
	dial := func() (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, job.id.Protocol().String(), job.id.Destination().String())
	}
	starting := it.starting() // asked first: it may come up right after it refused
	conn, err := dial()
	if err == nil || !errors.Is(err, syscall.ECONNREFUSED) || !starting {
		return conn, err
	}
	// One of those who wait for the process looks for all of them.
	select {
	case <-it.up:
		return dial()
	case <-ctx.Done():
		return nil, err
	case it.prober <- struct{}{}:
		defer func() { <-it.prober }()
	}
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		if conn, err := dial(); err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// starting tells whether the local process may still be on its way up.
func (it *Intercept) starting() bool {
	select {
	case <-it.up:
		return false
	default:
	}
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	if it.spec.StartGrace <= 0 || it.over {
		return false
	}
	return it.since.IsZero() || time.Since(it.since) < it.spec.StartGrace
}

// markUp records that the local process takes connections.
func (it *Intercept) markUp() { it.upOnce.Do(func() { close(it.up) }) }

// explainLocal says why the local process was not reached.
func explainLocal(target netip.AddrPort, err error) (message, hint string) {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens on " + target.String(), nobodyListensHint(target)
	case errors.Is(err, context.DeadlineExceeded):
		return target.String() + " did not answer in time", ""
	case errors.Is(err, errTooMany):
		return err.Error(), ""
	}
	return "connect to " + target.String() + ": " + err.Error(), ""
}

func nobodyListensHint(target netip.AddrPort) string {
	return "start the process that is to get the traffic, on port " + strconv.Itoa(int(target.Port()))
}
