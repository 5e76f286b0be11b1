package client

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Reasons of the errors about intercepts.
const (
	// ReasonBadSpec: the specification cannot be right for any manager.
	ReasonBadSpec = "BAD_INTERCEPT"
	// ReasonNameTaken: the session has an intercept of that name.
	ReasonNameTaken = "INTERCEPT_EXISTS"
	// ReasonRefused: an agent refused the intercept.
	ReasonRefused = "INTERCEPT_REFUSED"
	// ReasonRemoved: the intercept was removed by somebody else.
	ReasonRemoved = "INTERCEPT_REMOVED"
	// ReasonLeaseOver: the time that was asked for is over.
	ReasonLeaseOver = "LEASE_OVER"
	// ReasonConflict is the manager's reason for an intercept that another one
	// stands in the way of.
	ReasonConflict = "INTERCEPT_CONFLICT"
)

// What dialers on the way to the local process are told to allow for.
const (
	roundtripLatency = 2 * time.Second
	dialTimeout      = 3 * time.Second
)

// stage says who has to do something about an intercept.
type stage int

const (
	// creating: Intercept is still asking the manager for it.
	creating stage = iota
	// made: the manager has it.
	made
	// forgotten: the manager lost it with the session; restore makes it again.
	forgotten
)

// Intercept is one intercept of a session. It is remade by itself if the
// manager forgets the session.
type Intercept struct {
	s      *Session
	spec   InterceptSpec
	target netip.AddrPort
	done   chan struct{} // closed when the intercept is over
	upOnce sync.Once
	up     chan struct{} // closed when the local process has taken a connection
	prober chan struct{} // capacity 1; held by who waits for that on behalf of all

	// All below guarded by s.mu.
	info    *manager.InterceptInfo // nil until the manager has it
	stage   stage
	since   time.Time // when it became active last
	until   time.Time // end of the lease; zero: none
	over    bool
	closed  bool          // Close was called
	err     error         // why it is over; nil: closed by its owner
	changed chan struct{} // closed and replaced at every change
}

// Intercept makes an intercept. It returns once the manager has taken it,
// which is before it is active: see WaitActive. The caller closes it; closing
// the session does so too.
func (s *Session) Intercept(ctx context.Context, spec InterceptSpec) (*Intercept, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.Namespace == "" {
		spec.Namespace = s.opts.Namespace
	}
	it := &Intercept{
		s: s, spec: spec, target: spec.target(), stage: creating,
		done: make(chan struct{}), changed: make(chan struct{}),
		up: make(chan struct{}), prober: make(chan struct{}, 1),
	}
	s.mu.Lock()
	_, taken := s.intercepts[spec.Name]
	closed := s.closed
	if !taken && !closed {
		s.intercepts[spec.Name] = it // from now on its target may be dialled
	}
	s.mu.Unlock()
	switch {
	case closed:
		return nil, errs.New(codes.Canceled, ReasonSessionClosed, "create intercept %q: the session is closed", spec.Name)
	case taken:
		return nil, errs.New(codes.AlreadyExists, ReasonNameTaken, "this session has an intercept %q", spec.Name).
			WithHint("choose another name")
	}
	for {
		session := s.ID()
		err := it.establish(ctx)
		if err == nil {
			return it, nil
		}
		// The manager may have forgotten the session in between.
		if errs.Code(err) != codes.NotFound || s.ID() == session {
			s.drop(it)
			return nil, err
		}
	}
}

// establish asks the manager for the intercept.
func (it *Intercept) establish(ctx context.Context) error {
	s, spec := it.s, it.spec
	failed := func(err error) error { return fmt.Errorf("create intercept %q: %w", spec.Name, err) }
	session := s.info()
	if _, err := s.api.EnsureAgent(ctx, &manager.EnsureAgentRequest{
		Session: session, Name: spec.Workload, Namespace: spec.Namespace,
	}); err != nil {
		return failed(err)
	}
	request := &manager.CreateInterceptRequest{Session: session, InterceptSpec: it.wire()}
	prepared, err := s.api.PrepareIntercept(ctx, request)
	if err != nil {
		return failed(err)
	}
	// A refusal here is text alone. Creation refuses the same with a reason
	// and a hint, unless it was forced, or the obstacle has just gone.
	if prepared.GetError() == "" {
		resolve(request.InterceptSpec, prepared)
	}
	info, err := it.create(ctx, request)
	if err != nil {
		return failed(err)
	}
	s.mu.Lock()
	if s.id != session.GetSessionId() {
		s.mu.Unlock()
		return failed(errs.New(codes.NotFound, "SESSION_NOT_FOUND", "the manager forgot the session"))
	}
	it.stage = made
	if spec.Lease > 0 && it.until.IsZero() {
		it.until = time.Now().Add(spec.Lease)
	}
	s.mu.Unlock()
	it.update(info)
	return nil
}

// create uses the published call unless more is wanted than it can say.
func (it *Intercept) create(ctx context.Context, request *manager.CreateInterceptRequest) (*manager.InterceptInfo, error) {
	lease := it.leaseLeft()
	if !it.spec.Force && lease == 0 {
		return it.s.api.CreateIntercept(ctx, request)
	}
	return operatorsvc.NewOperatorClient(it.s.pool).CreateIntercept(ctx, &operatorv1.CreateInterceptRequest{
		Request: request, Force: it.spec.Force, Lease: int64(lease),
	})
}

// leaseLeft is the time to ask for: an intercept that is made again does not
// get its time again.
func (it *Intercept) leaseLeft() time.Duration {
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	if it.until.IsZero() {
		return it.spec.Lease
	}
	return max(time.Until(it.until), time.Second)
}

func (it *Intercept) wire() *manager.InterceptSpec {
	return &manager.InterceptSpec{
		Name:             it.spec.Name,
		Client:           it.s.opts.Name,
		Agent:            it.spec.Workload,
		Namespace:        it.spec.Namespace,
		Mechanism:        "tcp",
		TargetHost:       it.target.Addr().String(),
		TargetPort:       int32(it.target.Port()),
		PortIdentifier:   it.spec.Port,
		PodPorts:         it.spec.podPorts(),
		RoundtripLatency: int64(2 * roundtripLatency), // there and back, as peers do
		DialTimeout:      int64(dialTimeout),
	}
}

// resolve takes over what the manager found out about the workload.
func resolve(spec *manager.InterceptSpec, p *manager.PreparedIntercept) {
	if p.GetNamespace() != "" {
		spec.Namespace = p.GetNamespace()
	}
	spec.WorkloadKind = p.GetWorkloadKind()
	spec.ServiceUid = p.GetServiceUid()
	spec.ServiceName = p.GetServiceName()
	spec.ServicePortName = p.GetServicePortName()
	spec.ServicePort = p.GetServicePort()
	spec.ServiceIps = p.GetServiceIps()
	spec.Protocol = p.GetProtocol()
	spec.ContainerName = p.GetContainerName()
	spec.ContainerPort = p.GetContainerPort()
	spec.PodPorts = p.GetPodPorts()
}

// Spec returns what the intercept was made from.
func (it *Intercept) Spec() InterceptSpec { return it.spec }

// ID returns the intercept's id.
func (it *Intercept) ID() string { return it.Info().GetId() }

// Info returns the intercept as the manager last described it, its environment
// included; read only.
func (it *Intercept) Info() *manager.InterceptInfo {
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	return it.info
}

// Done is closed when the intercept is over.
func (it *Intercept) Done() <-chan struct{} { return it.done }

// Err says why the intercept is over: nil when its owner closed it, or it is
// not over.
func (it *Intercept) Err() error {
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	return it.err
}

// WaitActive waits until the intercept's traffic comes here. It returns an
// error when the intercept is over first, or ctx ends.
func (it *Intercept) WaitActive(ctx context.Context) error {
	for {
		it.s.mu.Lock()
		state, over, err, changed := it.info, it.over, it.err, it.changed
		it.s.mu.Unlock()
		switch {
		case err != nil:
			return err
		case over:
			return errs.New(codes.Canceled, ReasonRemoved, "intercept %q was removed", it.spec.Name)
		case state.GetDisposition() == manager.InterceptDispositionType_ACTIVE:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return it.notActive(ctx, state)
		}
	}
}

func (it *Intercept) notActive(ctx context.Context, state *manager.InterceptInfo) error {
	e := errs.New(errs.Code(context.Cause(ctx)), "NOT_ACTIVE", "intercept %q is not active: %s",
		it.spec.Name, stateText(state))
	return e.WithHint("trivet workload list shows whether %s has agents, trivet node list whether their nodes are connected",
		it.spec.Workload)
}

// Close removes the intercept at the manager, also one that has failed. Its
// open connections go on until they end, or the session does.
func (it *Intercept) Close(ctx context.Context) error {
	it.finish(nil)
	it.s.drop(it)
	if !it.close() {
		return nil
	}
	_, err := it.s.api.RemoveIntercept(ctx, &manager.RemoveInterceptRequest2{Session: it.s.info(), Name: it.spec.Name})
	if err != nil && errs.Code(err) != codes.NotFound {
		return fmt.Errorf("remove intercept %q: %w", it.spec.Name, err)
	}
	it.s.emit(Event{Kind: EventRemoved, Intercept: it.spec.Name, Message: "intercept " + it.spec.Name + " was removed"})
	return nil
}

// close tells whether there is something to remove, the first time it is
// asked.
func (it *Intercept) close() bool {
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	gone := errs.Reason(it.err) == ReasonRemoved || errs.Reason(it.err) == ReasonLeaseOver
	first := !it.closed
	it.closed = true
	return first && !gone
}
