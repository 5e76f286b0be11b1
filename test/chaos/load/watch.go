package load

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/test/chaos/check"
)

// stayAtServer is how long a reader stays with one server, about: going on
// elsewhere is part of what is tested.
const stayAtServer = 10 * time.Second

// watches is a reader of the whole state's changes. The first ones prefer a
// server each, so that all are compared; the others go around.
func (w *worker) watches(ctx context.Context) {
	first := w.l.cfg.Registers + w.l.cfg.Agents + w.l.cfg.Intercepts
	reader := w.number - first
	conns := w.conns()
	var after uint64
	for at := reader % w.l.cfg.Servers; w.pause(ctx, redial); {
		s := check.Stream{Reader: reader, Server: at, After: after}
		err := w.follow(ctx, conns[at], &s)
		if n := len(s.Batches); n > 0 {
			after = s.Batches[n-1].Revision
		}
		switch code := errs.Code(err); {
		case ctx.Err() != nil, code == codes.Canceled, code == codes.DeadlineExceeded, passing(err), outcome(err) == check.Unknown:
		default:
			s.Refused = text(err)
		}
		if len(s.Batches) > 0 || s.Refused != "" {
			w.l.stream(s)
			w.l.count("watch", check.OK)
		}
		if reader >= w.l.cfg.Servers {
			at = w.rnd.IntN(w.l.cfg.Servers)
		}
	}
}

// follow reads one stream for a while.
func (w *worker) follow(ctx context.Context, cc *grpc.ClientConn, s *check.Stream) error {
	ctx, cancel := context.WithTimeout(ctx, stayAtServer/2+time.Duration(w.rnd.Int64N(int64(stayAtServer))))
	defer cancel()
	stream, err := operatorsvc.NewOperatorClient(cc).Watch(ctx, &operatorv1.WatchRequest{AfterRevision: s.After})
	if err != nil {
		return err
	}
	var b check.Batch
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		b.Full, b.Diff = b.Full || resp.GetFull(), b.Diff || resp.GetDifference()
		for _, c := range resp.GetChanges() {
			b.Changes = append(b.Changes, check.Change{
				Revision: c.GetRevision(), Table: c.GetTable(), Key: c.GetKey(), Op: c.GetOp(), Content: hex.EncodeToString(c.GetHash()),
			})
		}
		if resp.GetRevision() == 0 {
			continue // the rest of the batch follows
		}
		b.Revision, b.At = resp.GetRevision(), w.l.now()
		s.Batches = append(s.Batches, b)
		b = check.Batch{}
	}
}

// sets is a reader of the published watch of all intercepts at one server.
func (w *worker) sets(ctx context.Context) {
	first := w.l.cfg.Registers + w.l.cfg.Agents + w.l.cfg.Intercepts + w.l.cfg.Watches
	at := (w.number - first) % w.l.cfg.Servers
	cc := w.conns()[at]
	for w.pause(ctx, redial) {
		s := check.SetStream{Server: at, Name: fmt.Sprintf("intercepts at server %d from %d", at, w.l.now())}
		stream, err := managersvc.NewManagerClient(cc).WatchIntercepts(ctx, &manager.SessionInfo{})
		for err == nil {
			var snap *manager.InterceptInfoSnapshot
			if snap, err = stream.Recv(); err == nil {
				var ids []string
				for _, i := range snap.GetIntercepts() {
					ids = append(ids, i.GetId())
				}
				s.Sets = append(s.Sets, ids)
			}
		}
		if len(s.Sets) > 0 {
			w.l.mu.Lock()
			w.l.hist.Sets = append(w.l.hist.Sets, s)
			w.l.mu.Unlock()
			w.l.count("snapshots", check.OK)
		}
		if ctx.Err() == nil && !passing(err) && outcome(err) != check.Unknown {
			w.l.unexpected("watch of intercepts: %s", text(err))
		}
	}
}
