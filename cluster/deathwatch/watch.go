package deathwatch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// rankDelay is how long each survivor waits for the one before it.
	rankDelay     = 100 * time.Millisecond
	electionEvery = time.Second
	redialTimeout = 200 * time.Millisecond
	// dialTimeout bounds the making of a watch connection, so that a server that
	// hung or was cut off is watched again soon after it is back.
	dialTimeout = 2 * time.Second
	// redialWithin is about half of the time spent on redials.
	redialWithin = 64 * time.Millisecond
	retryMin     = 50 * time.Millisecond
	retryMax     = 200 * time.Millisecond
)

// Server is a voter.
type Server struct{ ID, Address string }

// Raft is what the watch needs of the replica.
type Raft interface {
	// Leader is the leader as this server knows it; empty when unknown.
	Leader() (id, address string)
	// Term is the current term.
	Term() uint64
	// VoteTerm is the term in which this server last gave its vote; one that is
	// being given is waited for.
	VoteTerm() uint64
	// LastEntry is where this server's log ends.
	LastEntry() (term, index uint64)
	// ElectNow starts an election.
	ElectNow() error
}

// Config of a Watch.
type Config struct {
	// Self is this server's id.
	Self string
	Raft Raft
	// Dial opens a watch connection.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Tell passes evidence to another server and returns its answer.
	Tell func(ctx context.Context, to Server, e Evidence) (Evidence, error)
	// MayLead is false while this server must not become the leader; nil: it
	// always may.
	MayLead func() bool
	Logger  *slog.Logger
}

// Watch watches the other voters. Make it with New, feed it with Reconcile.
type Watch struct {
	cfg Config
	// refused says whether an address answers that nobody listens.
	refused func(ctx context.Context, address string) bool

	mu       sync.Mutex
	watched  map[Server]context.CancelFunc
	voters   []Server
	cases    map[matter]*inquiry
	lastElec time.Time
	lastTerm uint64
	started  uint64
	lonely   uint64
	wg       sync.WaitGroup
}

// New returns a watch of nobody.
func New(cfg Config) *Watch {
	return &Watch{cfg: cfg, refused: refused, watched: make(map[Server]context.CancelFunc), cases: make(map[matter]*inquiry)}
}

// Reconcile makes the watch follow voters (itself included in the list). What
// it starts ends with ctx.
func (w *Watch) Reconcile(ctx context.Context, voters []Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.voters = w.voters[:0]
	keep := make(map[Server]bool)
	for _, v := range voters {
		w.voters = append(w.voters, v)
		if v.ID == w.cfg.Self {
			continue
		}
		keep[v] = true
		if w.watched[v] == nil {
			wctx, cancel := context.WithCancel(ctx)
			w.watched[v] = cancel
			w.wg.Add(1)
			go w.follow(wctx, v)
		}
	}
	for v, cancel := range w.watched {
		if !keep[v] {
			cancel()
			delete(w.watched, v)
		}
	}
}

// Wait returns when everything that Reconcile started has ended.
func (w *Watch) Wait() { w.wg.Wait() }

// Elections is how many elections this watch has started.
func (w *Watch) Elections() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started
}

// Lonely is how often this watch saw the leader's end and no majority agreed.
func (w *Watch) Lonely() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lonely
}

func (w *Watch) follow(ctx context.Context, s Server) {
	defer w.wg.Done()
	delay := retryMin
	boot := ""
	for ctx.Err() == nil {
		dctx, cancel := context.WithTimeout(ctx, dialTimeout)
		conn, err := w.cfg.Dial(dctx, s.Address)
		cancel()
		if err == nil {
			delay = retryMin
			w.cfg.Logger.Debug("watching a server", "watched", s.ID)
			w.hold(ctx, conn, s, &boot)
			if ctx.Err() == nil {
				w.ended(ctx, s, false)
			}
		}
		select {
		case <-time.After(delay):
			delay = min(2*delay, retryMax)
		case <-ctx.Done():
		}
	}
}

// hold returns when the connection has ended. boot is the process that answered
// last time.
func (w *Watch) hold(ctx context.Context, conn net.Conn, s Server, boot *string) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	if g, ok := readGreeting(conn); ok {
		switch {
		case g.id != s.ID, *boot != "" && *boot != g.boot:
			// The port is open, but it is another process that opened it.
			w.ended(ctx, s, true)
		default:
			w.withdraw(s.ID)
		}
		if g.id == s.ID {
			*boot = g.boot
		}
	}
	// Nothing more is ever sent; whatever ends the read ends the connection.
	_, _ = io.Copy(io.Discard, conn)
}

// ended decides whether the end of a connection is the end of the leader.
// replaced: another process has its port.
func (w *Watch) ended(ctx context.Context, s Server, replaced bool) {
	term := w.cfg.Raft.Term()
	leader, _ := w.cfg.Raft.Leader()
	if leader != s.ID {
		w.cfg.Logger.Debug("a watched server's connection ended; it does not lead", "watched", s.ID, "leader", leader)
		return
	}
	if !replaced && !w.refused(ctx, s.Address) {
		w.cfg.Logger.Debug("the leader's connection ended, but its port is open", "watched", s.ID)
		return
	}
	rank, agreed := w.inquire(ctx, matter{s.ID, term})
	if !agreed {
		return
	}
	if rank > 0 {
		select {
		case <-time.After(time.Duration(rank) * rankDelay):
		case <-ctx.Done():
			return
		}
	}
	w.elect(s.ID, term)
}

// elect starts an election unless somebody else's is under way or won.
func (w *Watch) elect(dead string, term uint64) {
	if w.cfg.MayLead != nil && !w.cfg.MayLead() {
		w.cfg.Logger.Info("the leader's process is gone; the election is left to others", "leader", dead)
		return
	}
	if id, _ := w.cfg.Raft.Leader(); id != dead && id != "" {
		return
	}
	// An election that would take the vote of this one back would undo the
	// victory of whoever was quicker, on slow disks regularly.
	if vote := w.cfg.Raft.VoteTerm(); vote > term {
		w.cfg.Logger.Debug("the leader's process is gone, another server has this one's vote already", "leader", dead, "term", vote)
		return
	}
	w.mu.Lock()
	// A leader of a later term than last time means that somebody has won an
	// election in between; only fruitless ones are held back.
	if w.lastTerm == term && time.Since(w.lastElec) < electionEvery {
		w.mu.Unlock()
		return
	}
	w.lastElec, w.lastTerm = time.Now(), term
	w.started++
	w.mu.Unlock()
	w.cfg.Logger.Info("the leader's process is gone, starting an election", "leader", dead)
	if err := w.cfg.Raft.ElectNow(); err != nil {
		w.cfg.Logger.Warn("the election did not start", "err", err)
	}
}

// refused redials until the address answers that nobody listens. A dying
// process closes its descriptors one by one, so its connections can end a few
// milliseconds before its listening socket does; an address that still accepts
// after the last try belongs to a process that lives.
func refused(ctx context.Context, address string) bool {
	d := net.Dialer{Timeout: redialTimeout}
	for wait := time.Millisecond; ; wait *= 2 {
		conn, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if wait > redialWithin {
			return false
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
	}
}

// greeting says which process accepted a watch connection.
type greeting struct{ id, boot string }

// uuidLen is the length of a UUID as text.
const uuidLen = 36

// greetTimeout bounds the writing of a greeting.
const greetTimeout = 2 * time.Second

// readGreeting waits for the greeting; servers that send none are known by the
// end of their connections alone.
func readGreeting(conn net.Conn) (greeting, bool) {
	var buf [2*uuidLen + 1]byte
	if _, err := io.ReadFull(conn, buf[:]); err != nil || buf[2*uuidLen] != '\n' {
		return greeting{}, false
	}
	return greeting{string(buf[:uuidLen]), string(buf[uuidLen : 2*uuidLen])}, true
}

// Accept greets watch connections from ln with this server's id and boot id,
// both UUIDs, and holds them until they end or ln is closed.
func Accept(ln net.Listener, id, boot string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := make(map[net.Conn]struct{})
	for {
		conn, err := ln.Accept()
		if err != nil {
			break
		}
		mu.Lock()
		open[conn] = struct{}{}
		mu.Unlock()
		wg.Add(1)
		go func() {
			defer wg.Done()
			if conn.SetWriteDeadline(time.Now().Add(greetTimeout)) == nil {
				// A peer that does not take it is gone; the read below says so.
				_, _ = io.WriteString(conn, id+boot+"\n")
			}
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
			mu.Lock()
			delete(open, conn)
			mu.Unlock()
		}()
	}
	mu.Lock()
	for c := range open {
		c.Close()
	}
	mu.Unlock()
	wg.Wait()
}
