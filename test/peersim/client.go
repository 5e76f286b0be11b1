package peersim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// user is what clients of both generations have: a session, what they know of
// their intercepts, and what a user may ask for.
type user struct {
	*peer

	mu         sync.Mutex
	session    *manager.SessionInfo     // guarded by mu; nil while there is none
	manager    managersvc.ManagerClient // guarded by mu; of the session
	intercepts []*manager.InterceptInfo // guarded by mu
}

// ErrNoSession: the client is not connected.
var ErrNoSession = errors.New("the client has no session")

func (u *user) enter(s *manager.SessionInfo, m managersvc.ManagerClient) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.session, u.manager, u.intercepts = s, m, nil
}

func (u *user) know(s *manager.SessionInfo, list []*manager.InterceptInfo) {
	u.mu.Lock()
	u.intercepts = slices.Clone(list)
	u.mu.Unlock()
	u.add(Event{Kind: Snapshot, Session: s.GetSessionId(), Subject: summary(list)})
}

// Session is the client's session, nil while it has none.
func (u *user) Session() *manager.SessionInfo {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.session
}

// Intercepts lists the client's own as it knows them.
func (u *user) Intercepts() []*manager.InterceptInfo {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.intercepts)
}

// Manager is the manager as the session reaches it.
func (u *user) Manager() (managersvc.ManagerClient, *manager.SessionInfo, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.session == nil {
		return nil, nil, ErrNoSession
	}
	return u.manager, u.session, nil
}

// fill completes a spec with what PrepareIntercept found.
func fill(spec *manager.InterceptSpec, p *manager.PreparedIntercept) {
	spec.Namespace, spec.WorkloadKind = p.GetNamespace(), p.GetWorkloadKind()
	spec.ServiceName, spec.ServiceUid, spec.ServicePortName, spec.ServicePort = p.GetServiceName(), p.GetServiceUid(), p.GetServicePortName(), p.GetServicePort()
	spec.Protocol, spec.ContainerName, spec.ContainerPort = p.GetProtocol(), p.GetContainerName(), p.GetContainerPort()
	spec.PodPorts, spec.ServiceIps = p.GetPodPorts(), p.GetServiceIps()
}

// Intercept prepares and creates an intercept, as a user does, and waits until
// its state is known: an error unless it is ACTIVE. The spec is completed with
// what PrepareIntercept found.
func (u *user) Intercept(ctx context.Context, spec *manager.InterceptSpec) (*manager.InterceptInfo, error) {
	m, s, err := u.Manager()
	if err != nil {
		return nil, err
	}
	req := &manager.CreateInterceptRequest{Session: s, InterceptSpec: spec}
	p, err := m.PrepareIntercept(ctx, req)
	if err != nil {
		return nil, err
	}
	if p.GetError() != "" {
		return nil, errors.New(p.GetError())
	}
	fill(spec, p)
	mark := u.Mark()
	made, err := m.CreateIntercept(ctx, req)
	if err != nil {
		return nil, err
	}
	settled := made
	seen := func(Event) bool {
		for _, i := range u.Intercepts() {
			if i.GetId() == made.GetId() && i.GetDisposition() != manager.InterceptDispositionType_WAITING {
				settled = i
				return true
			}
		}
		return false
	}
	if _, _, err := u.Wait(ctx, mark, seen); err != nil {
		return made, fmt.Errorf("intercept %s stays %s: %w", made.GetId(), made.GetDisposition(), err)
	}
	if settled.GetDisposition() != manager.InterceptDispositionType_ACTIVE {
		return settled, fmt.Errorf("intercept %s is %s: %s", settled.GetId(), settled.GetDisposition(), settled.GetMessage())
	}
	return settled, nil
}

// Remove removes an intercept by name.
func (u *user) Remove(ctx context.Context, name string) error {
	m, s, err := u.Manager()
	if err != nil {
		return err
	}
	_, err = m.RemoveIntercept(ctx, &manager.RemoveInterceptRequest2{Session: s, Name: name})
	return err
}

// learn asks what a client asks for after its session began. Only one answer
// can spoil it.
func learn(ctx context.Context, m managersvc.ManagerClient, s *manager.SessionInfo) error {
	if _, err := m.GetKnownWorkloadKinds(ctx, s); err != nil && code(err) != codes.Unimplemented {
		return fmt.Errorf("GetKnownWorkloadKinds: %w", err)
	}
	_, _ = m.GetClientConfig(ctx, new(emptypb.Empty)) // an error is only noted
	return nil
}
