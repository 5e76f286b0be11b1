package limits

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/cluster/authz"
	"trivet/internal/errs"
	"trivet/internal/pki"
)

// Reasons of refusals.
const (
	ReasonRate    = "LIMIT_CALL_RATE"
	ReasonWatches = "LIMIT_WATCHES"
	ReasonTunnels = "LIMIT_TUNNELS"
)

// Config of a Limiter. In every field zero means the default, less than zero
// no bound.
type Config struct {
	// Watches bounds the open watches of one identity; default 64. A node, which
	// watches for each of its pods, has NodeFactor times as many.
	Watches int `json:"watchesPerIdentity" doc:"open watches of one identity"`
	// Tunnels bounds the open tunnels of one identity; default 256. A node has
	// NodeFactor times as many.
	Tunnels int `json:"tunnelsPerIdentity" doc:"open tunnels of one identity"`
	// CallsPerSecond bounds the calls and new streams of one client, agent,
	// viewer or debug identity; default 500. It may save up for two seconds.
	CallsPerSecond int `json:"callsPerSecond" doc:"calls per second of one identity that is not a server, node or operator"`
	// Connections bounds the open connections of one identity; default 64.
	Connections int `json:"connectionsPerIdentity" doc:"open connections of one identity"`
	// MaxConnections bounds the open connections of the server; default 15,000.
	MaxConnections int `json:"connections" doc:"open connections of the server"`
}

// NodeFactor is how many times a person's watches and tunnels a node may have.
const NodeFactor = 64

// WithDefaults fills in what is zero.
func (c Config) WithDefaults() Config {
	for _, f := range []struct {
		v *int
		d int
	}{{&c.Watches, 64}, {&c.Tunnels, 256}, {&c.CallsPerSecond, 500}, {&c.Connections, 64}, {&c.MaxConnections, 15_000}} {
		if *f.v == 0 {
			*f.v = f.d
		}
	}
	return c
}

// maxIdentities bounds the identities that are remembered. One that is not
// using anything is forgotten first, and starts afresh.
const maxIdentities = 16_384

// Limiter counts what identities use. Make it with New.
type Limiter struct {
	cfg Config
	now func() time.Time

	mu      sync.Mutex
	users   map[string]*user // guarded by mu
	refused map[string]uint64
}

// user is one identity; guarded by the limiter's mu.
type user struct {
	watches, tunnels int
	bucket           *rate.Limiter
	seen             time.Time
}

// New makes a limiter.
func New(cfg Config) *Limiter {
	return &Limiter{cfg: cfg.WithDefaults(), now: time.Now, users: map[string]*user{}, refused: map[string]uint64{
		ReasonRate: 0, ReasonWatches: 0, ReasonTunnels: 0,
	}}
}

// Refused counts the refusals by reason.
func (l *Limiter) Refused() map[string]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]uint64, len(l.refused))
	for k, v := range l.refused {
		out[k] = v
	}
	return out
}

// Unary bounds calls. It comes after the guard, which says who calls.
func (l *Limiter) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := l.call(authz.Caller(ctx)); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// Stream bounds streams.
func (l *Limiter) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	id := authz.Caller(ss.Context())
	if err := l.call(id); err != nil {
		return err
	}
	done, err := l.open(id, info.FullMethod)
	if err != nil {
		return err
	}
	defer done()
	return next(srv, ss)
}

// call takes one call from an identity's budget.
func (l *Limiter) call(id pki.ID) error {
	switch id.Role {
	case pki.RoleServer, pki.RoleNode, pki.RoleOperator, "":
		return nil
	}
	if l.cfg.CallsPerSecond < 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.user(id)
	if u.bucket == nil {
		u.bucket = rate.NewLimiter(rate.Limit(l.cfg.CallsPerSecond), 2*l.cfg.CallsPerSecond)
	}
	if u.bucket.AllowN(l.now(), 1) {
		return nil
	}
	l.refused[ReasonRate]++
	return errs.New(codes.ResourceExhausted, ReasonRate, "%s makes more than %d calls a second", id, l.cfg.CallsPerSecond).
		WithHint("call less often; limits.callsPerSecond of the servers raises it").WithRetry(time.Second)
}

// open counts a stream until done is called.
func (l *Limiter) open(id pki.ID, method string) (done func(), err error) {
	limit, reason, what := l.cfg.Watches, ReasonWatches, "watches"
	if strings.HasSuffix(method, "/Tunnel") {
		limit, reason, what = l.cfg.Tunnels, ReasonTunnels, "tunnels"
	}
	if limit < 0 || id.Role == pki.RoleServer || id.Role == "" {
		return func() {}, nil
	}
	if id.Role == pki.RoleNode {
		limit *= NodeFactor
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.user(id)
	count := &u.watches
	if reason == ReasonTunnels {
		count = &u.tunnels
	}
	if *count >= limit {
		l.refused[reason]++
		return nil, errs.New(codes.ResourceExhausted, reason, "%s has %d %s open on this server, which is all it may", id, *count, what).
			WithHint("close some; limits.%sPerIdentity of the servers raises it", what)
	}
	*count++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		*count--
	}, nil
}

// user finds or makes the record of an identity; the caller holds mu.
func (l *Limiter) user(id pki.ID) *user {
	key, now := id.String(), l.now()
	u := l.users[key]
	if u == nil {
		if len(l.users) >= maxIdentities {
			l.forget(now)
		}
		u = new(user)
		l.users[key] = u
	}
	u.seen = now
	return u
}

// forget makes room: whoever has nothing open and was not seen for as long as
// it takes to fill a bucket again is the same as somebody new.
func (l *Limiter) forget(now time.Time) {
	for key, u := range l.users {
		if u.watches == 0 && u.tunnels == 0 && now.Sub(u.seen) > 2*time.Second {
			delete(l.users, key)
		}
	}
}
