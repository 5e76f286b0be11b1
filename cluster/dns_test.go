package cluster_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// fakeLookups has one name, and one that fails.
type fakeLookups struct{ net.Resolver }

func (*fakeLookups) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	switch host {
	case "outside.example.":
		return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
	case "broken.default.":
		return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// TestLookupDNS asks an older agent that is attached to one server through
// another one, and the server's resolver when it does not answer.
func TestLookupDNS(t *testing.T) {
	f := newFleet(t, 3, func(c *cluster.Config) { c.Lookups = new(fakeLookups) })
	alice, node := f.manager(0, pki.RoleClient, "alice"), f.manager(1, pki.RoleNode, "node-1")
	sess := f.arriveClient(alice, "alice")
	ask := func(client managersvc.ManagerClient, s *manager.SessionInfo, name string) (*manager.DNSResponse, error) {
		return client.LookupDNS(f.ctx, &manager.DNSRequest{Session: s, Name: name, Type: 1})
	}
	// Without an agent the server's resolver answers.
	if r, err := ask(alice, sess, "outside.example."); err != nil || !strings.HasSuffix(string(r.GetRrs()), "\xc0\x00\x02\x01") {
		t.Errorf("outside: %v, %v", r, err)
	}
	if r, err := ask(alice, sess, "nowhere.example."); err != nil || r.GetRCode() != 3 {
		t.Errorf("nowhere: %v, %v", r, err)
	}
	// Newer clients read why in the answer, older ones in the status.
	if r, err := ask(alice, sess, "broken."); err != nil || r.GetRCode() != 2 {
		t.Errorf("broken, for a newer client: %v, %v", r, err)
	}
	older, err := alice.ArriveAsClient(f.ctx, &manager.ClientInfo{Name: "old@laptop", InstallId: "i2", Product: "telepresence", Version: "2.20.2", Namespace: "default"})
	must(t, err)
	if _, err := ask(alice, older, "broken."); status.Code(err) != codes.Unavailable {
		t.Errorf("broken, for an older client: %v", err)
	}
	if r, err := alice.Lookup(f.ctx, &manager.LookupRequest{Session: sess, Name: "outside.example."}); err != nil || len(r.GetIps()) != 1 {
		t.Errorf("Lookup: %v, %v", r, err)
	}
	if r, err := alice.Lookup(f.ctx, &manager.LookupRequest{Session: sess, Name: "nowhere.example."}); err != nil || len(r.GetIps()) != 0 {
		t.Errorf("Lookup of nothing: %v, %v", r, err)
	}
	// Workloads are found by their names.
	if r, err := alice.Lookup(f.ctx, &manager.LookupRequest{Session: sess, Name: "echo.default.svc.cluster.local."}); err != nil || len(r.GetIps()) != 1 {
		t.Errorf("Lookup of a workload: %v, %v", r, err)
	}
	if _, err := alice.Lookup(f.ctx, &manager.LookupRequest{Session: sess, Name: "x"}); status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), "empty name") {
		t.Errorf("Lookup of a name without a dot: %v", err)
	}

	// Older agents do not know their pod's uid.
	info := f.agentInfo()
	info.PodUid = ""
	agent, err := node.ArriveAsAgent(f.ctx, info)
	must(t, err)
	questions, err := node.WatchLookupDNS(f.ctx, agent)
	must(t, err)
	_, err = questions.Header()
	must(t, err)
	var reply atomic.Pointer[manager.DNSResponse] // nil: the agent is silent
	ended := make(chan error, 1)
	go func() {
		for {
			q, err := questions.Recv()
			if err != nil {
				ended <- err
				return
			}
			if r := reply.Load(); r != nil {
				if _, err := node.AgentLookupDNSResponse(f.ctx, &manager.DNSAgentResponse{Session: agent, Request: q, Response: r}); err != nil {
					t.Errorf("answer: %v", err)
				}
			}
		}
	}()
	reply.Store(&manager.DNSResponse{Rrs: []byte("from the agent")})
	// Once all servers know where the agent is attached.
	clustertest.Eventually(t, "the agent answers", func() bool {
		r, err := ask(alice, sess, "outside.example.")
		must(t, err)
		return string(r.GetRrs()) == "from the agent"
	})
	reply.Store(&manager.DNSResponse{RCode: 3})
	if r, err := ask(alice, sess, "outside.example."); err != nil || r.GetRCode() != 3 {
		t.Errorf("the agent says that there is no such name: %v, %v", r, err)
	}
	// When it does not answer, the server's resolver does after a second.
	reply.Store(nil)
	if r, err := ask(alice, sess, "outside.example."); err != nil || !strings.HasSuffix(string(r.GetRrs()), "\xc0\x00\x02\x01") {
		t.Errorf("an agent that is silent: %v, %v", r, err)
	}
	_, err = node.Depart(f.ctx, agent)
	must(t, err)
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("the stream of an agent that has departed ended with %v", err)
	}
}
