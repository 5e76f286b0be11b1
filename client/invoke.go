package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/internal/errs"
)

// maxRetryAfter bounds how long a server can make a retry wait.
const maxRetryAfter = time.Second

// Invoke makes one unary call. When the server cannot serve it now
// (Unavailable) or the connection breaks, it goes on with the other servers
// until an answer comes or the time is up: that of ctx, else
// Options.CallTimeout. Writes are numbered, so that one that was sent twice is
// applied once. The error is an *errs.Error, that of the last server which
// gave one.
func (p *Pool) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.opts.CallTimeout)
		defer cancel()
	}
	var number uint64
	if writes[method] {
		n, end := p.writer.begin()
		defer end()
		number = n
	}
	var pause backoff
	var said *errs.Error // by a server, as opposed to "time is up"
	var unwilling string // the server that last answered that it cannot
	for {
		link, release, err := p.pick(ctx, unwilling)
		if err != nil {
			return firstOf(said, errs.From(err))
		}
		callCtx := ctx
		if number > 0 {
			callCtx = metadata.AppendToOutgoingContext(ctx, RequestKey, p.writer.header(number))
		}
		err = link.Invoke(callCtx, method, args, reply, opts...)
		lost := link.broken()
		release()
		if err == nil {
			return nil
		}
		e := errs.From(err)
		switch {
		case ctx.Err() != nil:
			return firstOf(said, e)
		case e.Code == codes.Unavailable || lost && e.Code == codes.Canceled:
			said = e
		default:
			return e
		}
		if unwilling = ""; !lost {
			unwilling = link.Address
		}
		if !pause.waitAtLeast(ctx, min(e.RetryAfter, maxRetryAfter)) {
			return said
		}
	}
}

func firstOf(said, otherwise *errs.Error) *errs.Error {
	if said != nil {
		return said
	}
	return otherwise
}

// pick returns the link for an attempt: the current one, or, after a server
// was unwilling, one to the server after that. Unless it is the current one it
// is for this call alone: one refusal must not tear streams off that are doing
// well.
func (p *Pool) pick(ctx context.Context, unwilling string) (*Link, func(), error) {
	current, err := p.Current(ctx)
	if err != nil {
		return nil, nil, err
	}
	keep := func() {}
	at := slices.Index(p.servers, unwilling)
	if at < 0 {
		return current, keep, nil
	}
	addr := p.servers[(at+1)%len(p.servers)]
	if addr == current.Address {
		return current, keep, nil
	}
	if link, err := p.dial(ctx, addr); err == nil {
		return link, link.close, nil
	}
	return current, keep, nil // that one is gone, which the current one is not
}

// NewStream opens a stream on the current link. A stream is not moved when
// the link ends; its owner opens another.
func (p *Pool) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	link, err := p.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	return link.NewStream(ctx, desc, method, opts...)
}

const (
	managerService  = "/telepresence.manager.Manager/"
	operatorService = "/trivet.operator.v1.Operator/"
)

// writes lists the unary calls that change the replicated state and are
// numbered. All others may be sent again as they are. A test holds this list
// and the services together.
var writes = map[string]bool{
	managerService + "ArriveAsClient":  true,
	managerService + "ArriveAsAgent":   true,
	managerService + "ReconnectAgent":  true,
	managerService + "ReconnectClient": true,
	managerService + "Depart":          true,
	managerService + "EnsureAgent":     true,
	managerService + "CreateIntercept": true,
	managerService + "UpdateIntercept": true,
	managerService + "RemoveIntercept": true,
	managerService + "ReviewIntercept": true,
	managerService + "SetLogLevel":     true,
	managerService + "UninstallAgents": true,

	operatorService + "CreateIntercept": true,
	operatorService + "DeleteIntercept": true,
	operatorService + "PutConfig":       true,
	operatorService + "DeleteConfig":    true,
	operatorService + "SetIdentity":     true,
	operatorService + "RevokeToken":     true,
	operatorService + "SetLimits":       true,
	operatorService + "PutPolicy":       true,
	operatorService + "DeletePolicy":    true,
}
