package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// Limits of one step of keeping the session up. A step that takes longer is
// given up and tried again, on another server if there is one.
const (
	resumeTimeout = 10 * time.Second
	remainTimeout = 15 * time.Second
	// outageNotice is how long a reconnect may take before the user is told
	// that no server can be reached, and why.
	outageNotice = 2 * time.Second
	// dialLinger is how long a stream of dial requests may go on when its link
	// is left.
	dialLinger = 250 * time.Millisecond
)

// run keeps the session attached to the pool's current server until ctx ends.
func (s *Session) run(ctx context.Context) {
	var pause backoff
	for attempt := 0; ; attempt++ {
		link, err := s.awaitLink(ctx, attempt > 0)
		if err != nil {
			return
		}
		began := time.Now()
		if attempt > 0 {
			err = s.resume(ctx)
		}
		if err == nil {
			err = s.attach(ctx, link)
		}
		if ctx.Err() != nil {
			return
		}
		s.opts.Log.Warn("session detached", "server", link.Server, "cause", err)
		if time.Since(began) > steady {
			pause.reset()
		}
		if s.connected.Swap(false) || attempt == 0 {
			s.emit(Event{
				Kind: EventReconnecting, Server: link.Server, Address: link.Address,
				Message: errs.From(err).Message, Err: err,
			})
		}
		if !pause.wait(ctx) {
			return
		}
	}
}

// awaitLink waits for a link. If that takes long and the user does not know
// why, it tells.
func (s *Session) awaitLink(ctx context.Context, tell bool) (*Link, error) {
	short, cancel := context.WithTimeout(ctx, outageNotice)
	link, err := s.pool.Await(short)
	cancel()
	if err == nil || ctx.Err() != nil {
		return link, err
	}
	if out := s.pool.Outage(); out != nil && tell {
		e := errs.From(out)
		s.emit(Event{Kind: EventReconnecting, Message: e.Message, Hint: e.Hint, Err: out})
	}
	return s.pool.Await(ctx)
}

// resume tells the manager that the session goes on. A manager that does not
// know it gets a new one.
func (s *Session) resume(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
	defer cancel()
	_, err := s.api.ReconnectClient(ctx, &manager.ReconnectClientRequest{
		Session: s.info(), Client: s.opts.info(), Intercepts: s.known(),
	})
	if errs.Code(err) != codes.NotFound {
		return err
	}
	if known, err := s.resumeEarlier(ctx); known || err != nil {
		return err
	}
	if err := s.arrive(ctx); err != nil {
		return err
	}
	for _, it := range s.all() {
		it.forget()
	}
	s.emit(Event{
		Kind:    EventRenewed,
		Message: "the manager no longer knew this session; a new one was opened and its intercepts are being made again",
	})
	return nil
}

// resumeEarlier looks whether the manager knows a session that this one was
// before: then a snapshot was restored in which it is, with its intercepts, and a
// new session would find those in its way.
func (s *Session) resumeEarlier(ctx context.Context) (known bool, err error) {
	s.mu.Lock()
	earlier := slices.Clone(s.earlier)
	s.mu.Unlock()
	for _, id := range earlier {
		session := &manager.SessionInfo{SessionId: id, InstallId: s.info().InstallId}
		_, err := s.api.ReconnectClient(ctx, &manager.ReconnectClientRequest{Session: session, Client: s.opts.info()})
		if code := errs.Code(err); code == codes.NotFound || code == codes.PermissionDenied {
			continue
		}
		if err != nil {
			return false, err
		}
		s.become(id)
		s.emit(Event{
			Kind:    EventRenewed,
			Message: "the manager knows an earlier session of this client again, which goes on",
		})
		for _, it := range s.all() {
			if err := it.meetAgain(ctx); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	return false, nil
}

// attach holds the session's streams on one link, until the first of them ends
// or the link is retired. It returns why.
func (s *Session) attach(ctx context.Context, link *Link) error {
	// A server on its way out passes on what it was asked to before it ends the
	// stream of dial requests; somebody's connection hangs on each.
	dialCtx, endDial := context.WithCancel(ctx)
	defer endDial()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var streams sync.WaitGroup
	for _, part := range []func(context.Context, *Link) error{
		s.watchIntercepts, s.remain, s.restore,
		func(_ context.Context, link *Link) error { return s.watchDial(dialCtx, link) },
	} {
		streams.Go(func() {
			if err := part(ctx, link); err != nil {
				cancel(err)
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-link.Retired():
		cancel(link.Cause())
	}
	linger := time.AfterFunc(dialLinger, endDial)
	streams.Wait()
	linger.Stop()
	// Why the link went says more than how its streams noticed.
	if cause := link.Cause(); cause != nil {
		return cause
	}
	return context.Cause(ctx)
}

// remain sends the session's sign of life.
func (s *Session) remain(ctx context.Context, _ *Link) error {
	tick := time.NewTicker(s.opts.RemainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		callCtx, cancel := context.WithTimeout(ctx, remainTimeout)
		_, err := s.api.Remain(callCtx, &manager.RemainRequest{Session: s.info()})
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case errs.Code(err) == codes.NotFound:
			return err // resume arrives anew
		case err != nil:
			// The session lives for hours without one; streams tell sooner.
			s.opts.Log.Warn("sign of life not taken", "cause", err)
		}
	}
}

// watchIntercepts follows the state of the session's intercepts. Its first
// message also proves that the server serves this session.
func (s *Session) watchIntercepts(ctx context.Context, link *Link) error {
	stream, err := managersvc.NewManagerClient(link).WatchIntercepts(ctx, s.info())
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		snapshot, err := stream.Recv()
		if err != nil {
			return ended(ctx, "intercepts", err)
		}
		if first {
			s.connected.Store(true)
			s.emit(Event{Kind: EventConnected, Server: link.Server, Address: link.Address})
		}
		s.observe(ctx, snapshot.GetIntercepts())
	}
}

// watchDial receives the connections that are to be dialled here.
func (s *Session) watchDial(ctx context.Context, link *Link) error {
	stream, err := managersvc.NewManagerClient(link).WatchDial(ctx, s.info())
	if err != nil {
		return err
	}
	for {
		request, err := stream.Recv()
		if err != nil {
			return ended(ctx, "dial requests", err)
		}
		if !s.dials.offer(ctx, request, link) {
			return nil
		}
	}
}

// ended says how a stream ended; nil when that was our doing.
func ended(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, io.EOF):
		return errs.New(codes.Unavailable, ReasonStreamEnded, "the manager ended the stream of %s", what)
	}
	return errs.From(err)
}
