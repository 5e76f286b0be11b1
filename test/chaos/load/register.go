package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/test/chaos/check"
)

// A key serves for so many operations, or until so many outcomes on it are
// unknown: the search for an order must stay short.
const (
	maxOpsPerKey     = 250
	maxUnknownPerKey = 4
)

// repeatOneIn acknowledged writes is sent once more under its number.
const repeatOneIn = 16

// slot is a register that several clients use; when its key has served, the
// next takes its place.
type slot struct {
	number int

	mu            sync.Mutex
	name          string // guarded by mu
	generation    int    // guarded by mu
	used, unknown int    // guarded by mu
	value         string // guarded by mu; the newest known
	rev           uint64 // guarded by mu; of value
}

// take returns the key and what is known of it.
func (s *slot) take() (key, value string, rev uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= maxOpsPerKey || s.unknown >= maxUnknownPerKey {
		s.generation++
		s.name, s.used, s.unknown, s.value, s.rev = fmt.Sprintf("register-%d-%d", s.number, s.generation), 0, 0, "", 0
	}
	s.used++
	return s.name, s.value, s.rev
}

// learn takes in the result of an operation.
func (s *slot) learn(o check.Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Key != s.name {
		return
	}
	if o.Result == check.Unknown {
		s.unknown++
	}
	if o.Result == check.OK && o.Rev > s.rev {
		s.value, s.rev = o.Value, o.Rev
	}
}

// registers is a client that writes and reads keys.
func (w *worker) registers(ctx context.Context) {
	conns := w.conns()
	for w.pause(ctx, w.l.cfg.Think) {
		s := w.l.slots[w.rnd.IntN(len(w.l.slots))]
		key, value, rev := s.take()
		o := check.Op{Client: w.number, Key: key, Call: w.l.now()}
		switch n := w.rnd.IntN(100); {
		case n < 20:
			o.Kind = check.Put
		case n < 50:
			o.Kind, o.Expect, o.IfRev = check.CAS, value, rev
		case n < 85:
			o.Kind = check.Get
		default:
			o.Kind = check.Stale
		}
		if o.Kind == check.Put || o.Kind == check.CAS {
			w.put(ctx, conns, &o)
		} else if !w.get(ctx, conns, &o) {
			continue
		}
		s.learn(o)
		w.l.record(o)
	}
}

func (w *worker) put(ctx context.Context, conns []*grpc.ClientConn, o *check.Op) {
	o.Value = fmt.Sprintf("%d.%d", w.number, w.writes+1)
	req := &operatorv1.PutConfigRequest{Key: o.Key, Value: []byte(o.Value)}
	if o.Kind == check.CAS {
		req.IfModifyRevision = &o.IfRev
	}
	var resp *operatorv1.PutConfigResponse
	call := func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = operatorsvc.NewOperatorClient(cc).PutConfig(ctx, req)
		return err
	}
	// A write that was sent is seen through, also when the load is to end.
	a := w.write(context.WithoutCancel(ctx), conns, call)
	o.Return, o.Server, o.Tries, o.Result, o.Error = w.l.now(), a.server, a.tries, a.result, text(a.err)
	switch {
	case a.result == check.OK:
		o.Error = ""
		o.Rev = resp.GetRevision()
		if w.rnd.IntN(repeatOneIn) == 0 {
			w.repeat(ctx, conns, a.server, o, call, &resp)
		}
	case a.result == check.Unknown:
		o.Return = check.Never
	case a.result == check.Failed && a.tries > 0 && !passing(a.err):
		w.l.unexpected("%s of %s: %s", o.Kind, o.Key, o.Error)
	}
}

// repeat sends an acknowledged write again.
func (w *worker) repeat(ctx context.Context, conns []*grpc.ClientConn, last int, o *check.Op,
	call func(context.Context, *grpc.ClientConn) error, resp **operatorv1.PutConfigResponse,
) {
	a := w.again(ctx, conns, last, call)
	r := check.Repeat{Key: o.Key, First: o.Rev}
	switch a.result {
	case check.OK:
		r.Second = (*resp).GetRevision()
	case check.Conflict:
		r.Error = text(a.err)
	default:
		return // nothing was learned
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.hist.Repeats = append(w.l.hist.Repeats, r)
	w.l.countLocked("repeat", a.result)
}

// get reads; false: no server was connected.
func (w *worker) get(ctx context.Context, conns []*grpc.ClientConn, o *check.Op) bool {
	level := "linearizable"
	if o.Kind == check.Stale {
		level = "stale"
	}
	var resp *operatorv1.GetConfigResponse
	a, ok := w.read(ctx, conns, level, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = operatorsvc.NewOperatorClient(cc).GetConfig(ctx, &operatorv1.GetConfigRequest{Key: o.Key})
		return err
	})
	if !ok {
		return false
	}
	o.Return, o.Server, o.Tries, o.Result = w.l.now(), a.server, 1, a.result
	switch {
	case a.err == nil:
		o.Value, o.Rev, o.State = string(resp.GetValue()), resp.GetModifyRevision(), resp.GetRevision()
	case errs.Code(a.err) == codes.NotFound:
		o.Result = check.OK
	default:
		o.Error = text(a.err)
		if !passing(a.err) && outcome(a.err) != check.Unknown {
			w.l.unexpected("%s of %s: %s", o.Kind, o.Key, o.Error)
		}
	}
	return true
}

// askTime is how long an answer to Ask may take: it is asked of servers that
// cannot answer yet.
const askTime = 10 * time.Second

// Ask sends n linearizable reads of keys in use to one server at the same time
// and returns a function that waits for the answers, which are recorded like
// all others. A server that was stopped finds them when it goes on.
func (l *Load) Ask(ctx context.Context, server, n int) (wait func()) {
	var wg sync.WaitGroup
	cc := l.cfg.Access.Operator(server, asker)
	for i := range n {
		key, _, _ := l.slots[i%len(l.slots)].take()
		o := check.Op{Client: asker - i, Server: server, Kind: check.Get, Key: key, Call: l.now(), Tries: 1}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			ctx = metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "linearizable")
			resp, err := operatorsvc.NewOperatorClient(cc).GetConfig(ctx, &operatorv1.GetConfigRequest{Key: o.Key})
			o.Return, o.Result = l.now(), check.OK
			switch {
			case err == nil:
				o.Value, o.Rev, o.State = string(resp.GetValue()), resp.GetModifyRevision(), resp.GetRevision()
			case errs.Code(err) != codes.NotFound:
				o.Result, o.Error = check.Failed, text(err)
			}
			l.record(o)
		})
	}
	return wg.Wait
}

// asker is the number of Ask's connection, and of the first of its clients;
// the others count down from it.
const asker = -100
