package client

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/client/clienttest"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// status asks which server answers.
func status(t *testing.T, p *Pool) string {
	t.Helper()
	r, err := operatorsvc.NewOperatorClient(p).Status(t.Context(), &operatorv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetServer()
}

func TestPoolBeginsWithTheFirstOrThePreferredServer(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 3)
	if got := status(t, dialFake(t, f, Options{})); got != "s1" {
		t.Errorf("answered by %s, want s1", got)
	}
	p := dialFake(t, f, Options{Prefer: f.Servers[2].Address})
	if got := status(t, p); got != "s3" {
		t.Errorf("answered by %s, want the preferred s3", got)
	}
	link, err := p.Current(t.Context())
	if err != nil || link.Server != "s3" || link.Address != f.Servers[2].Address {
		t.Errorf("current link = %+v, %v; want s3", link, err)
	}
}

func TestPoolFailsOverInOrderAndComesBack(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 3)
	p := dialFake(t, f, fast())
	for i, next := range []string{"s2", "s3", "s1"} {
		f.Servers[i].Kill()
		if got := status(t, p); got != next {
			t.Fatalf("after the death of s%d: answered by %s, want %s", i+1, got, next)
		}
		f.Servers[i].Start()
	}
}

func TestCallInFlightOnADyingServerIsAnsweredByAnother(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	p := dialFake(t, f, fast())
	f.Servers[0].Hang()
	// The request is on its way into the hung server, which is noticed and
	// left; the call has no idea.
	if got := status(t, p); got != "s2" {
		t.Errorf("answered by %s, want s2", got)
	}
}

func TestDrainingServerIsLeftAtOnce(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	p := dialFake(t, f, fast())
	link, err := p.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A stream of the old link keeps the server from ending.
	stream, err := managersvc.NewManagerClient(link).WatchDial(t.Context(), &manager.SessionInfo{})
	if err != nil {
		t.Fatal(err)
	}
	done := f.Servers[0].Drain()
	receive(t, "the link to retire", link.Retired())
	if r := errs.Reason(link.Cause()); r != ReasonDraining {
		t.Errorf("reason = %s (%v), want %s", r, link.Cause(), ReasonDraining)
	}
	if got := status(t, p); got != "s2" {
		t.Errorf("answered by %s, want s2", got)
	}
	// The old stream still works.
	f.Dial("s1", []byte("x"))
	if r, err := stream.Recv(); err != nil || string(r.GetConnId()) != "x" {
		t.Errorf("stream of the draining server: %v, %v", r, err)
	}
	f.Servers[0].Kill()
	<-done
}

func TestUnavailableIsTriedElsewhereUnderTheSameNumber(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 3)
	p := dialFake(t, f, fast())
	noQuorum := errs.New(codes.Unavailable, "NO_QUORUM", "no leader")
	f.Answer("PutConfig", noQuorum, noQuorum)
	api := operatorsvc.NewOperatorClient(p)
	_, err := api.PutConfig(t.Context(), &operatorv1.PutConfigRequest{Key: "a"})
	if errs.Code(err) != codes.Unimplemented { // the fake's own answer, at last
		t.Fatalf("error = %v, want the third server's", err)
	}
	calls := f.Calls("PutConfig")
	var servers, numbers []string
	for _, c := range calls {
		servers = append(servers, c.Server)
		numbers = append(numbers, strings.Join(c.MD.Get(RequestKey), " "))
	}
	if want := []string{"s1", "s2", "s3"}; !slices.Equal(servers, want) {
		t.Errorf("asked %v, want %v", servers, want)
	}
	if len(slices.Compact(numbers)) != 1 || !strings.HasSuffix(numbers[0], "/1/1") {
		t.Errorf("request ids = %q, want one id that ends in /1/1", numbers)
	}
	// The current link is not the culprit: streams stay where they are.
	if got := status(t, p); got != "s1" {
		t.Errorf("current server = %s, want s1", got)
	}
}

func TestOtherErrorsAreFinalAndTyped(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	p := dialFake(t, f, fast())
	conflict := errs.New(codes.FailedPrecondition, "INTERCEPT_CONFLICT", "taken").WithHint("use --force")
	f.Answer("Status", conflict)
	_, err := operatorsvc.NewOperatorClient(p).Status(t.Context(), &operatorv1.StatusRequest{})
	e := errs.From(err)
	if e.Reason != "INTERCEPT_CONFLICT" || e.Hint != "use --force" || strings.Contains(err.Error(), "rpc error") {
		t.Errorf("error = %v (%s, hint %q)", err, e.Reason, e.Hint)
	}
	if n := len(f.Calls("Status")); n != 1 {
		t.Errorf("called %d times, want once", n)
	}
}

func TestTheLastWordOfAServerBeatsTimeIsUp(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	p := dialFake(t, f, fast())
	for range 100 {
		f.Answer("Status", errs.New(codes.Unavailable, "NO_QUORUM", "no leader"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int64
	f.Change(func() {
		f.OnCall = func(method string) {
			if method == "Status" && calls.Add(1) == 3 {
				cancel()
			}
		}
	})
	_, err := operatorsvc.NewOperatorClient(p).Status(ctx, &operatorv1.StatusRequest{})
	if errs.Reason(err) != "NO_QUORUM" {
		t.Errorf("error = %v, want the server's", err)
	}
}

func TestReadsNeverGoBack(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	p := dialFake(t, f, Options{Consistency: Stale})
	for _, r := range []string{"41", "7", "no number", "42"} {
		f.Change(func() { f.Revision = r })
		status(t, p)
	}
	if _, err := operatorsvc.NewOperatorClient(p).Status(WithConsistency(t.Context(), Linearizable), &operatorv1.StatusRequest{}); err != nil {
		t.Fatal(err)
	}
	var sent, consistency []string
	for _, c := range f.Calls("Status") {
		sent = append(sent, strings.Join(c.MD.Get(RevisionKey), " "))
		consistency = append(consistency, strings.Join(c.MD.Get(ConsistencyKey), " "))
	}
	if want := []string{"", "41", "41", "41", "42"}; !slices.Equal(sent, want) {
		t.Errorf("revisions sent = %q, want %q", sent, want)
	}
	if want := []string{"stale", "stale", "stale", "stale", "linearizable"}; !slices.Equal(consistency, want) {
		t.Errorf("consistency sent = %q, want %q", consistency, want)
	}
}

func TestServerThatCannotServeIsAvoided(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	not := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	f.Servers[0].Health.SetServingStatus("", not)
	p := dialFake(t, f, fast())
	if got := status(t, p); got != "s2" {
		t.Errorf("answered by %s, want s2, which serves", got)
	}
	// When none serves, any one is better than nothing.
	f.Servers[1].Health.SetServingStatus("", not)
	if got := status(t, dialFake(t, f, fast())); got != "s1" {
		t.Errorf("answered by %s, want s1", got)
	}
	// And as soon as one does, it is taken.
	link, err := p.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.Servers[0].Health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	receive(t, "the link to retire", link.Retired())
	if got := status(t, p); got != "s1" || errs.Reason(link.Cause()) != ReasonNotServing {
		t.Errorf("answered by %s after %v, want s1", got, link.Cause())
	}
}

func TestNoServerIsExplainedPerServer(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	for _, s := range f.Servers {
		s.Kill()
	}
	_, err := Dial(t.Context(), contextOf(f), Options{Patience: -1})
	e := errs.From(err)
	if e.Code != codes.Unavailable || e.Reason != ReasonNoServer || e.Hint == "" {
		t.Fatalf("error = %v (%s, %s), want Unavailable %s with a hint", err, e.Code, e.Reason, ReasonNoServer)
	}
	for _, s := range f.Servers {
		if !strings.Contains(e.Message, s.Address+": ") || !strings.Contains(e.Message, "refused") {
			t.Errorf("message %q does not say what is with %s", e.Message, s.Address)
		}
	}
}

func TestHungServerAtTheFirstDialIsExplained(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	f.Servers[0].Hang()
	opts := fast()
	opts.AttemptTimeout, opts.Patience = 100*time.Millisecond, -1
	_, err := Dial(t.Context(), contextOf(f), opts)
	if err == nil || !strings.Contains(err.Error(), "no answer within 100ms") {
		t.Errorf("error = %v, want one that says that no answer came", err)
	}
}

func TestServerThatComesUpWithinPatienceIsUsed(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	f.Servers[0].Kill()
	opts := fast()
	opts.Patience = 30 * time.Second
	tried := make(chan struct{})
	opts.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			select {
			case tried <- struct{}{}:
			default:
			}
		}
		return conn, err
	}
	go func() {
		<-tried
		<-tried
		f.Servers[0].Start()
	}()
	if got := status(t, dialFake(t, f, opts)); got != "s1" {
		t.Errorf("answered by %q", got)
	}
}

func TestCertificatesAreExplained(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	other := clienttest.New(t, 0)
	ctx := contextOf(f)
	ctx.Bundle = other.Bundle
	_, err := Dial(t.Context(), ctx, Options{Patience: time.Hour})
	if e := errs.From(err); e.Reason != pki.ReasonForeignCA || e.Hint == "" || e.Code != codes.Unauthenticated {
		t.Errorf("foreign CA: %v (%s %s, hint %q)", err, e.Code, e.Reason, e.Hint)
	}

	ctx.Bundle = t.TempDir() + "/b"
	f.Issue(pki.RoleNode, "n", ctx.Bundle)
	_, err = Dial(t.Context(), ctx, Options{Patience: time.Hour})
	if e := errs.From(err); e.Reason != pki.ReasonRefused || e.Code != codes.PermissionDenied {
		t.Errorf("wrong role: %v (%s %s)", err, e.Code, e.Reason)
	}

	ctx.Bundle = t.TempDir() + "/b"
	b, err := f.CA.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: pki.RoleClient, Name: "old"}, TTL: time.Minute}, time.Now().Add(-time.Hour))
	if err == nil {
		err = b.Write(ctx.Bundle)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = Dial(t.Context(), ctx, Options{})
	if e := errs.From(err); e.Reason != pki.ReasonExpired {
		t.Errorf("expired: %v (%s)", err, e.Reason)
	}
}

func TestClosedPoolFailsCalls(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	p := dialFake(t, f, Options{})
	p.Close()
	_, err := managersvc.NewManagerClient(p).Version(t.Context(), &emptypb.Empty{})
	if errs.Reason(err) != ReasonClosed {
		t.Errorf("error = %v, want reason %s", err, ReasonClosed)
	}
}

func TestEveryUnaryCallIsKnownAsReadOrWrite(t *testing.T) {
	t.Parallel()
	// A new rpc has to be put into one of the two lists on purpose: a write
	// that is sent again without a number may happen twice.
	reads := map[string]bool{}
	for _, m := range []string{
		"Version", "GetAgentImageFQN", "GetAgentConfig", "GetClientConfig", "GetTelepresenceAPI", "Remain", "GetLogs",
		"PrepareIntercept", "GetIntercept", "GetKnownWorkloadKinds", "Lookup", "LookupDNS", "ReportMetrics",
		"AgentLookupDNSResponse", "GetLicense", "CanConnectAmbassadorCloud", "GetCloudConfig",
	} {
		reads[managerService+m] = true
	}
	for _, m := range []string{
		"Status", "ListSessions", "ListIntercepts", "GetIntercept", "ListNodes", "ListWorkloads", "GetConfig", "ListConfig", "Digest",
		"ListPeers", "TransferLeadership", "RaftInfo", "Health", "ListTokens", "ListIdentities", "GetAuthority", "GetLimits", "ListPolicies",
		// Not numbered: repeated, they do the same again (a token that nobody was
		// told the secret of is of no use).
		"AddPeer", "RemovePeer", "CreateToken", "RotateAuthority",
	} {
		reads[operatorService+m] = true
	}
	seen := 0
	for service, methods := range map[string][]string{
		managerService: names(managersvc.Manager_ServiceDesc), operatorService: names(operatorsvc.Operator_ServiceDesc),
	} {
		for _, m := range methods {
			seen++
			if full := service + m; reads[full] == writes[full] {
				t.Errorf("%s: read %v, write %v; want exactly one", full, reads[full], writes[full])
			}
		}
	}
	if want := len(reads) + len(writes); seen != want {
		t.Errorf("%d calls exist, %d are listed", seen, want)
	}
}

func names(desc grpc.ServiceDesc) []string {
	var out []string
	for _, m := range desc.Methods {
		out = append(out, m.MethodName)
	}
	return out
}
