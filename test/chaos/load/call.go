package load

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	"trivet/internal/errs"
	"trivet/test/chaos/check"
)

const (
	// attemptTime is how long one server may take to answer; then another one
	// is asked.
	attemptTime = time.Second
	// writeTime is how long a write is retried before its outcome counts as
	// unknown.
	writeTime = 8 * time.Second
	// avoidFor is how long a server that gave no answer is left alone, so that
	// the work goes on where it can.
	avoidFor = time.Second
	// redial is the pause while no server can be reached.
	redial = 20 * time.Millisecond
)

// noLeader is the reason of a call that was not passed on and will not be.
const noLeader = "NO_LEADER"

// answer is what became of a call.
type answer struct {
	server, tries int
	result        check.Outcome
	err           error
}

// conns are the worker's own connections as an operator.
func (w *worker) conns() []*grpc.ClientConn {
	out := make([]*grpc.ClientConn, w.l.cfg.Servers)
	for i := range out {
		out[i] = w.l.cfg.Access.Operator(i, w.number)
	}
	return out
}

// pick chooses a server that is connected, another one than last if there is
// one; -1: none.
func (w *worker) pick(conns []*grpc.ClientConn, last int) int {
	best := -1
	for _, i := range w.rnd.Perm(len(conns)) {
		if conns[i].GetState() != connectivity.Ready {
			conns[i].Connect()
			continue
		}
		if i != last && time.Now().After(w.avoid[i]) {
			return i
		}
		if best < 0 || best == last {
			best = i
		}
	}
	return best
}

// write sends a numbered write until its outcome is known or the time is up.
func (w *worker) write(ctx context.Context, conns []*grpc.ClientConn, call func(context.Context, *grpc.ClientConn) error) answer {
	w.writes++
	return w.send(ctx, conns, w.writes, -1, call)
}

// again repeats the last write at another server than it was answered by.
func (w *worker) again(ctx context.Context, conns []*grpc.ClientConn, last int, call func(context.Context, *grpc.ClientConn) error) answer {
	return w.send(ctx, conns, w.writes, last, call)
}

func (w *worker) send(ctx context.Context, conns []*grpc.ClientConn, number uint64, last int, call func(context.Context, *grpc.ClientConn) error) answer {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, engine.MetaRequest, fmt.Sprintf("%s/%d/%d", w.name, number, number))
	out := answer{server: last, result: check.Failed}
	for {
		i := w.pick(conns, out.server)
		if i < 0 {
			if !w.pause(ctx, redial) {
				return out
			}
			continue
		}
		actx, stop := context.WithTimeout(ctx, attemptTime)
		err := call(actx, conns[i])
		stop()
		w.learn(i, err)
		out.server, out.err = i, err
		out.tries++
		switch result := outcome(err); result {
		case check.OK, check.Conflict:
			out.result = result
			return out
		case check.Unknown:
			out.result = check.Unknown
		case check.Failed:
			if !passing(err) {
				// Nothing that another attempt could change. The number makes
				// it the answer to all attempts.
				out.result = check.Failed
				return out
			}
		}
		if ctx.Err() != nil || !w.pause(ctx, redial) {
			return out
		}
	}
}

// learn notes whether a server answered at all.
func (w *worker) learn(server int, err error) {
	if errs.Code(err) == codes.DeadlineExceeded {
		w.avoid[server] = time.Now().Add(avoidFor)
	}
}

// outcome reads what an error says of a write's effect.
func outcome(err error) check.Outcome {
	switch errs.Code(err) {
	case codes.OK:
		return check.OK
	case codes.Aborted:
		if errs.Reason(err) == "CONFLICT" {
			return check.Conflict
		}
		return check.Failed
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		if errs.Reason(err) == noLeader {
			return check.Failed
		}
		return check.Unknown
	}
	return check.Failed
}

// passing says that a refusal had to do with the moment.
func passing(err error) bool {
	return slices.Contains([]codes.Code{codes.Unavailable, codes.ResourceExhausted}, errs.Code(err)) || errs.Reason(err) == noLeader
}

// read makes one read at one server of the worker's choice; ok is false when
// none is connected.
func (w *worker) read(ctx context.Context, conns []*grpc.ClientConn, level string, call func(context.Context, *grpc.ClientConn) error) (answer, bool) {
	i := w.pick(conns, -1)
	if i < 0 {
		return answer{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	err := call(metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, level), conns[i])
	w.learn(i, err)
	a := answer{server: i, tries: 1, result: check.OK, err: err}
	if err != nil {
		a.result = check.Failed
	}
	return a, true
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %v", errs.Code(err), errs.Reason(err), err)
}
