package engine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/fault"
	commandv1 "trivet/proto/trivet/command/v1"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

const (
	digestBytes = 16
	// showWrite is how long an applied write may take to show in the local
	// state before its caller is told so.
	showWrite = 5 * time.Second
)

// Request numbers a command that its own sender keeps repeating.
type Request struct {
	Writer         string
	Number, Lowest uint64
}

// Propose makes one command of op (a value of the commandv1.Command oneof,
// set in cmd), has it applied exactly once and returns its result. identity is
// the authenticated caller; req numbers the command when the caller does.
//
// Errors: *errs.Error for a refusal, for a missing leader (reason NO_LEADER: the
// command has not taken effect and will not), and (reason UNKNOWN_OUTCOME) when
// it had to give up after an attempt that may have taken effect.
func (e *Engine) Propose(ctx context.Context, identity string, req *Request, cmd *commandv1.Command) (*commandv1.Result, error) {
	e.settle(ctx, cmd)
	if err := e.stampVersion(cmd); err != nil {
		return nil, err
	}
	cmd.Identity = identity
	digest, err := e.payloadDigest(cmd)
	if err != nil {
		return nil, err
	}
	if e.cfg.Secrets != nil && cmd.GetVersion() >= sealedVersion {
		// After the digest: a command that is sent again is the same although
		// another key may seal it by then.
		e.cfg.Secrets.Seal(cmd)
	}
	var w *writer
	if req == nil || fault.Planted(fault.DoubleApply) {
		w = e.writer.Load()
		number, lowest, err := w.begin(ctx)
		if err != nil {
			return nil, fmt.Errorf("wait for a place among this server's writes: %w", err)
		}
		defer w.end(number)
		req = &Request{Writer: w.name, Number: number, Lowest: lowest}
	}
	cmd.RequestId = &commandv1.RequestId{Writer: req.Writer, Number: req.Number, Lowest: req.Lowest, PayloadDigest: digest}
	res, err := e.apply(ctx, []*commandv1.Command{cmd})
	if err != nil {
		return nil, err
	}
	if w != nil && res[0].GetReason() == fsm.ReasonRequestForgotten {
		e.renumber(w)
	}
	return res[0], resultError(res[0])
}

// renumber gives this server another numbering in the place of one that the
// state has retired although this process lives: its row was removed, rightly or
// by a removal that came late. What is under way in the old one stays refused.
func (e *Engine) renumber(old *writer) {
	e.writer.CompareAndSwap(old, old.successor())
}

// apply sends commands to the leader until they are applied and then waits
// until the local state shows them.
func (e *Engine) apply(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
	// Whatever the last attempt says, an earlier one may have taken effect.
	unknown := false
	results, err := atLeader(ctx, e,
		func(ctx context.Context) ([]*commandv1.Result, error) {
			cmds, err := e.stampRegistrations(ctx, cmds)
			if err != nil {
				return nil, err
			}
			return e.cfg.Replica.Propose(ctx, cmds)
		},
		func(ctx context.Context, c peersvc.PeerClient) ([]*commandv1.Result, error) {
			resp, err := c.Propose(ctx, &peerv1.ProposeRequest{Commands: cmds})
			if err == nil && len(resp.GetResults()) != len(cmds) {
				err = fmt.Errorf("%w: the leader answered %d of %d commands", replica.ErrUnknownOutcome, len(resp.GetResults()), len(cmds))
			}
			return resp.GetResults(), err
		},
		func(err error) bool {
			unknown = unknown || !certain(err)
			return retriableWrite(err)
		})
	switch {
	case err != nil && unknown:
		return nil, unknownOutcome(err)
	case err != nil && ctx.Err() != nil:
		return nil, errs.New(errs.Code(err), reasonNoLeader, "the write was not sent because no leader was known: %w", err).
			WithHint("send it again")
	case err != nil:
		return nil, transportError(err)
	}
	last := results[len(results)-1].GetRevision()
	if e.Root().Revision() >= last {
		return results, nil // the leader's own state always shows it already
	}
	wctx, cancel := context.WithTimeout(ctx, showWrite)
	defer cancel()
	if err := e.cfg.Replica.WaitRevision(wctx, last); err != nil {
		return nil, errs.New(codes.Unavailable, "BEHIND", "the write was applied as revision %d but this server did not get to it: %w", last, err).
			WithHint("read from another server")
	}
	return results, nil
}

// ProposeHere applies commands if this server leads and does not forward. It
// serves the other servers' forwarded writes.
func (e *Engine) ProposeHere(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
	e.settle(ctx, cmds...)
	if err := e.cap(cmds); err != nil {
		return nil, err
	}
	cmds, err := e.stampRegistrations(ctx, cmds)
	if err != nil {
		return nil, transportError(err)
	}
	res, err := e.cfg.Replica.Propose(ctx, cmds)
	return res, transportError(err)
}

// payloadDigest covers the operation as it was sent, before any stamp.
func (e *Engine) payloadDigest(cmd *commandv1.Command) ([]byte, error) {
	// The version is that of the moment and may be another when the command is
	// sent again; older programs put 1 here.
	bare := &commandv1.Command{Version: firstVersion, Op: cmd.GetOp()}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(bare)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	if e.cfg.Secrets != nil {
		return e.cfg.Secrets.Digest(raw)[:digestBytes], nil
	}
	sum := sha256.Sum256(raw)
	return sum[:digestBytes], nil
}

// Reasons that servers tell each other; a client sees them only when the hold
// is over.
const (
	reasonNoLeader  = "NO_LEADER"
	reasonNotLeader = "NOT_LEADER"
	reasonUnknown   = "UNKNOWN_OUTCOME"
	reasonBusy      = "BACKPRESSURE"
	reasonTooLarge  = "TOO_LARGE"
)

// transportError gives the replica's errors the form in which they cross the
// wire.
func transportError(err error) error {
	var told *errs.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &told):
		return err
	case errors.Is(err, replica.ErrUnknownOutcome):
		// First: it may wrap another of these as its cause.
		return errs.New(codes.Unavailable, reasonUnknown, "%w", err)
	case errors.Is(err, replica.ErrNotLeader), errors.Is(err, replica.ErrClosed):
		return errs.New(codes.Unavailable, reasonNotLeader, "%w", err)
	case errors.Is(err, replica.ErrBusy):
		return errs.New(codes.ResourceExhausted, reasonBusy, "%w", err).WithHint("write more slowly")
	case errors.Is(err, replica.ErrTooLarge):
		return errs.New(codes.InvalidArgument, reasonTooLarge, "%w", err)
	}
	return err
}

// certain says of an attempt's error that the attempt has not taken effect and
// never will.
func certain(err error) bool {
	if errors.Is(err, replica.ErrUnknownOutcome) {
		return false
	}
	for _, e := range []error{replica.ErrNotLeader, replica.ErrClosed, replica.ErrBusy, replica.ErrTooLarge, errNoneKnown, errUnreachable} {
		if errors.Is(err, e) {
			return true
		}
	}
	switch errs.Reason(err) {
	case reasonNotLeader, reasonBusy, reasonTooLarge:
		return true
	}
	return false
}

// retriableWrite: with a number on the command every repetition is safe, so
// only answers that will not change are final.
func retriableWrite(err error) bool {
	switch {
	case errors.Is(err, replica.ErrBusy), errors.Is(err, replica.ErrTooLarge):
		return false
	case errors.Is(err, replica.ErrNotLeader), errors.Is(err, replica.ErrUnknownOutcome), errors.Is(err, replica.ErrClosed),
		errors.Is(err, errNoneKnown), errors.Is(err, errUnreachable):
		return true
	}
	switch errs.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Aborted:
		return true
	}
	return false
}

// unknownOutcome is the answer when the repetitions had to end after an attempt
// that may have taken effect.
func unknownOutcome(err error) error {
	code := codes.Unavailable
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		code = errs.Code(err)
	}
	return errs.New(code, reasonUnknown, "the write was sent but its outcome is unknown: %w", err).
		WithHint("send it again; the same request number makes that safe").WithRetry(time.Second)
}

// resultError turns a refusal into an error.
func resultError(r *commandv1.Result) error {
	if r.GetCode() == commandv1.Code_CODE_OK {
		return nil
	}
	e := errs.New(codes.Code(r.GetCode()), r.GetReason(), "%s", r.GetMessage())
	e.Hint = r.GetHint()
	return e
}
