package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// outage describes a time without any reachable server.
type outage struct {
	since time.Time
	err   error
	// refused: every server refused us for who we are, so waiting is useless.
	refused bool
}

// run keeps a current link until ctx ends.
func (p *Pool) run(ctx context.Context) {
	defer p.update(func() { p.closed, p.current = true, nil })
	var pause backoff
	next := 0
	for {
		link, at := p.connect(ctx, next, &pause)
		if link == nil {
			return
		}
		p.opts.Log.Info("connected", "server", link.Server, "address", link.Address)
		p.update(func() { p.current, p.outage = link, nil })
		since := time.Now()
		cause := link.watch(ctx)
		if ctx.Err() != nil {
			link.retire(errs.New(codes.Canceled, ReasonClosed, "the connection was closed"))
			link.close()
			return
		}
		link.retire(cause)
		p.opts.Log.Warn("connection lost", "server", link.Server, "address", link.Address, "cause", cause)
		p.update(func() { p.current = nil })
		p.discard(ctx, link)
		next = at + 1
		// The next server is tried at once, unless links break as fast as they
		// are made.
		if time.Since(since) > steady {
			pause.reset()
		} else if !pause.wait(ctx) {
			return
		}
	}
}

// discard lets the streams of a retired link end and closes it.
func (p *Pool) discard(ctx context.Context, link *Link) {
	if errs.Reason(link.Cause()) == ReasonNoAnswer {
		link.close() // its streams hang as it does
		return
	}
	p.wg.Go(func() {
		timer := time.NewTimer(lingerTimeout)
		defer timer.Stop()
		select {
		case <-link.socket.gone:
		case <-timer.C:
		case <-ctx.Done():
		}
		link.close()
	})
}

// connect tries the servers in turn, beginning with number next, until one
// answers or ctx ends (nil). A server that says that it cannot serve is taken
// only if no other one of the same round can.
func (p *Pool) connect(ctx context.Context, next int, pause *backoff) (*Link, int) {
	for {
		round := make([]error, 0, len(p.servers))
		var second *Link
		secondAt := 0
		for i := range p.servers {
			at := (next + i) % len(p.servers)
			link, err := p.dial(ctx, p.servers[at])
			switch {
			case err == nil && link.serving.Load():
				if second != nil {
					second.close()
				}
				return link, at
			case err == nil && second == nil:
				second, secondAt = link, at
			case err == nil:
				link.close()
			default:
				round = append(round, fmt.Errorf("%s: %w", p.servers[at], err))
			}
			if second == nil && !pause.wait(ctx) {
				return nil, 0
			}
		}
		if second != nil {
			return second, secondAt
		}
		p.note(round)
	}
}

// note records a round of attempts without success.
func (p *Pool) note(round []error) {
	p.update(func() {
		since := time.Now()
		if p.outage != nil {
			since = p.outage.since
		}
		p.outage = &outage{since: since, err: unreachable(round), refused: allRefused(round)}
	})
}

func allRefused(round []error) bool {
	return !slices.ContainsFunc(round, func(err error) bool {
		code := errs.Code(err)
		return code != codes.Unauthenticated && code != codes.PermissionDenied
	})
}

// unreachable sums a round up: what all servers say alike is said once.
func unreachable(round []error) *errs.Error {
	first := errs.From(round[0])
	if allRefused(round) {
		return errs.New(first.Code, first.Reason, "connect to %w", round[0]).WithHint("%s", first.Hint)
	}
	text := make([]string, len(round))
	for i, err := range round {
		text[i] = err.Error()
	}
	e := errs.New(codes.Unavailable, ReasonNoServer, "no server can be reached: %s", strings.Join(text, "; "))
	for _, err := range round {
		if hint := errs.From(err).Hint; hint != "" {
			return e.WithHint("%s", hint)
		}
	}
	return e.WithHint("check that the servers run and that these addresses are right (trivet context show)")
}

// servingElsewhere tells whether another server than that of l can serve.
func (p *Pool) servingElsewhere(ctx context.Context, l *Link) bool {
	for _, addr := range p.servers {
		if addr == l.Address {
			continue
		}
		other, err := p.dial(ctx, addr)
		if err != nil {
			continue
		}
		serving := other.serving.Load()
		other.close()
		if serving {
			return true
		}
	}
	return false
}

// explain gives errors of TCP and TLS a reason and a hint.
func (p *Pool) explain(err error) error {
	err = pki.ExplainHandshake(err, p.source)
	var typed *errs.Error
	if errors.As(err, &typed) {
		return typed
	}
	return err
}
