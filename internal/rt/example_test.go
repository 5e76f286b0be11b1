package rt_test

import (
	"context"
	"fmt"
	"time"

	"trivet/internal/rt"
)

// SessionMsg is what a session understands: a sealed interface, so that a
// linter sees when a case is missing.
type SessionMsg interface{ isSessionMsg() }

// Touch renews the session and asks how often that has been done.
type Touch struct{ Reply rt.Reply[int] }

// Expire is what the session tells itself when it was not touched for a while.
type Expire struct{}

func (Touch) isSessionMsg()  {}
func (Expire) isSessionMsg() {}

// Session ends when nobody touches it.
type Session struct {
	touched int
	expiry  *rt.Timer
}

// Start arms the expiry.
func (s *Session) Start(c *rt.Ctx[SessionMsg]) error {
	s.expiry = c.After(time.Minute, Expire{})
	return nil
}

// Handle has one case for each message.
func (s *Session) Handle(c *rt.Ctx[SessionMsg], m SessionMsg) error {
	switch m := m.(type) {
	case Touch:
		s.touched++
		s.expiry.Stop()
		s.expiry = c.After(time.Minute, Expire{})
		m.Reply.Send(s.touched)
	case Expire:
		c.StopSelf()
	}
	return nil
}

// Stop says goodbye.
func (s *Session) Stop(c *rt.Ctx[SessionMsg], why rt.Reason) { fmt.Println(c.Name(), why) }

func Example() {
	ctx := context.Background()
	system := rt.NewSystem(rt.Options{})
	sessions, err := rt.SpawnGroup(system, "sessions", rt.GroupPolicy{})
	if err != nil {
		fmt.Println(err)
		return
	}
	session, err := rt.Spawn(sessions, rt.Spec[SessionMsg]{
		Name: "session:7f",
		Kind: "session",
		New:  func() rt.Behavior[SessionMsg] { return &Session{} },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		n, err := rt.Ask(ctx, session, func(r rt.Reply[int]) SessionMsg { return Touch{r} })
		fmt.Println(n, err)
	}
	fmt.Println(system.Shutdown(ctx))
	fmt.Println(session.Offer(Expire{}))
	// Output:
	// 1 <nil>
	// 2 <nil>
	// sessions.session:7f stopped
	// <nil>
	// actor is stopped
}
