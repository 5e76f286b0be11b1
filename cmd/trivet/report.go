package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"trivet/client"
	"trivet/internal/errs"
	"trivet/internal/render"
)

// Events of the command itself, beside those of the session.
const (
	eventCreated client.EventKind = "created" // the manager has the intercept
	eventStarted client.EventKind = "started" // the command runs
	eventExited  client.EventKind = "exited"  // the command has ended
)

// cleanupTimeout bounds taking leave of the manager at the end.
const cleanupTimeout = 5 * time.Second

// eventView is an event as -o jsonl shows it. Names are stable.
type eventView struct {
	Event      client.EventKind `json:"event"`
	Time       time.Time        `json:"time"`
	Intercept  string           `json:"intercept,omitempty"`
	ID         string           `json:"id,omitempty"`
	Session    string           `json:"session,omitempty"`
	Server     string           `json:"server,omitempty"`
	Address    string           `json:"address,omitempty"`
	Message    string           `json:"message,omitempty"`
	Hint       string           `json:"hint,omitempty"`
	Reason     string           `json:"reason,omitempty"`
	Connection uint64           `json:"connection,omitempty"`
	From       string           `json:"from,omitempty"`
	BytesIn    *uint64          `json:"bytesIn,omitempty"`
	BytesOut   *uint64          `json:"bytesOut,omitempty"`
	DurationMs *float64         `json:"durationMs,omitempty"`
	Pid        int              `json:"pid,omitempty"`
	ExitCode   *int             `json:"exitCode,omitempty"`
	Missed     uint64           `json:"missed,omitempty"`
}

// reporter shows events, one line each. It is safe for concurrent use.
type reporter struct {
	jsonl bool
	now   func() time.Time
	// opened: there is an intercept to report on.
	opened bool

	mu  sync.Mutex
	out io.Writer // guarded by mu
}

// pumping shows the session's events as they come, in a goroutine that the
// returned function ends.
func (r *reporter) pumping(ctx context.Context, s *client.Session) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.pump(ctx, s)
	}()
	return func() { cancel(); <-done }
}

// pump shows the session's events until there are no more, or ctx ends.
func (r *reporter) pump(ctx context.Context, s *client.Session) {
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return
		}
		r.event(e)
	}
}

// leave closes the session, even if ctx has ended, and shows the rest of its
// events, unless there never was an intercept that they could be about. An untidy end is a warning: what the user wanted has happened, and
// the manager cleans up by itself.
func (r *reporter) leave(ctx context.Context, s *client.Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		r.event(client.Event{
			Kind: client.EventWarning, Message: "not everything could be cleaned up: " + render.Cause(err),
			Hint: "the manager removes the intercept once it misses its owner",
		})
	}
	if r.opened {
		r.pump(ctx, s)
	}
}

func (r *reporter) event(e client.Event) {
	if e.Time.IsZero() {
		e.Time = r.now()
	}
	v := eventView{
		Event: e.Kind, Time: e.Time.UTC(), Intercept: e.Intercept, Server: e.Server, Address: e.Address,
		Message: render.Clean(e.Message), Hint: e.Hint, Reason: errs.Reason(e.Err), Connection: e.ID, Missed: e.Missed,
	}
	if e.From.IsValid() {
		v.From = e.From.String()
	}
	if e.Kind == client.EventClosed {
		ms := float64(e.Duration.Microseconds()) / 1000
		v.BytesIn, v.BytesOut, v.DurationMs = &e.BytesIn, &e.BytesOut, &ms
	}
	r.show(v, eventText(e))
}

func (r *reporter) created(i *client.Intercept) {
	r.opened = true
	info := i.Info()
	spec := info.GetSpec()
	port := spec.GetServicePortName()
	if port == "" {
		port = fmt.Sprint(spec.GetContainerPort())
	}
	text := fmt.Sprintf("intercept %s: %s (%s) port %s -> %s:%d", spec.GetName(), spec.GetAgent(), spec.GetNamespace(),
		port, spec.GetTargetHost(), spec.GetTargetPort())
	r.show(eventView{
		Event: eventCreated, Time: r.now().UTC(), Intercept: spec.GetName(), ID: info.GetId(),
		Session: info.GetClientSession().GetSessionId(),
	}, text)
}

func (r *reporter) started(pid int, name string) {
	r.show(eventView{Event: eventStarted, Time: r.now().UTC(), Pid: pid}, fmt.Sprintf("started %s (pid %d)", name, pid))
}

func (r *reporter) exited(pid, code int) {
	r.show(eventView{Event: eventExited, Time: r.now().UTC(), Pid: pid, ExitCode: &code},
		fmt.Sprintf("the command exited with %d", code))
}

// show writes one line. That nobody reads is not worth ending an intercept
// for, so errors of writing are dropped.
func (r *reporter) show(v eventView, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.jsonl {
		fmt.Fprintln(r.out, render.Clean(text))
		if v.Hint != "" {
			fmt.Fprintln(r.out, "  "+render.Clean(v.Hint))
		}
		return
	}
	// A struct of texts, numbers and times always encodes.
	data, _ := json.Marshal(v)
	fmt.Fprintf(r.out, "%s\n", data)
}

// eventText says an event in words.
func eventText(e client.Event) string {
	text := ""
	if e.Missed > 0 {
		text = fmt.Sprintf("(%d events about connections were not shown) ", e.Missed)
	}
	switch e.Kind {
	case client.EventConnected:
		return text + fmt.Sprintf("connected to server %s (%s)", e.Server, e.Address)
	case client.EventReconnecting:
		return text + "reconnecting: " + e.Message
	case client.EventActive:
		return text + fmt.Sprintf("intercept %s is active: %s", e.Intercept, e.Message)
	case client.EventWaiting, client.EventNoAgent:
		return text + fmt.Sprintf("intercept %s: %s", e.Intercept, e.Message)
	case client.EventConnection:
		return text + fmt.Sprintf("connection %d from %s", e.ID, e.From)
	case client.EventClosed:
		text += fmt.Sprintf("connection %d closed after %s, %s in, %s out", e.ID, e.Duration.Round(time.Millisecond),
			render.Bytes(e.BytesIn), render.Bytes(e.BytesOut))
		if e.Message != "" {
			text += " (" + e.Message + ")"
		}
		return text
	case client.EventRefused:
		return text + fmt.Sprintf("refused a connection from %s: %s", e.From, e.Message)
	case client.EventWarning:
		return text + "warning: " + e.Message
	}
	return text + e.Message
}
