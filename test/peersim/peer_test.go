package peersim

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/proto/telepresence/manager"
)

const patience = 20 * time.Second

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await waits for an event from mark on.
func await(t *testing.T, r *Record, mark uint64, is func(Event) bool) (Event, uint64) {
	t.Helper()
	e, next, err := r.Wait(ctxOf(t), mark, is)
	if err != nil {
		t.Fatalf("%v; the record: %v", err, r.Since(0))
	}
	return e, next
}

func push[M any](t *testing.T, c chan<- M, m M) {
	t.Helper()
	select {
	case c <- m:
	case <-time.After(patience):
		t.Fatal("nobody takes what the manager has to say")
	}
}

func agentInfo() *manager.AgentInfo {
	return &manager.AgentInfo{
		Name: "echo", Namespace: "default", PodName: "echo-0", PodIp: "10.0.0.5", Product: "telepresence", Version: "2.20.2",
		Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "telepresence", Version: "2.20.2"}},
	}
}

func intercept(id string, d manager.InterceptDispositionType) *manager.InterceptInfo {
	return &manager.InterceptInfo{
		Id: id, Disposition: d, ClientSession: &manager.SessionInfo{SessionId: "client-9"},
		Spec: &manager.InterceptSpec{Name: id, Agent: "echo", Namespace: "default", PortIdentifier: "http", DialTimeout: int64(time.Second)},
	}
}

func snapshot(list ...*manager.InterceptInfo) *manager.InterceptInfoSnapshot {
	return &manager.InterceptInfoSnapshot{Intercepts: list}
}

const (
	active  = manager.InterceptDispositionType_ACTIVE
	waiting = manager.InterceptDispositionType_WAITING
)

func TestWireExample(t *testing.T) {
	t.Parallel()
	conn := Conn{From: netip.MustParseAddrPort("10.0.0.5:40000"), To: netip.MustParseAddrPort("127.0.0.1:8080"), Protocol: TCP}
	f := Info{Version: 2, Latency: 2 * time.Second, DialTimeout: 3 * time.Second, ConnID: conn.ID(), Session: "agent:1111"}.Frame()
	want := strings.ReplaceAll("01 02 80a8d6b907 80bcc1960b 0d 0a000005 9c40 7f000001 1f90 06 0a 6167656e743a31313131", " ", "")
	if got := hex.EncodeToString(f.payload()); got != want {
		t.Errorf("the contract's example is\n%s, not\n%s", want, got)
	}
	for _, c := range []Conn{conn, {From: netip.MustParseAddrPort("[fd00::1]:1"), To: conn.To, Protocol: UDP}} {
		if got, err := ParseConn(c.ID()); err != nil || got != c {
			t.Errorf("%v came back as %v, %v", c, got, err)
		}
	}
	if n := len((Conn{From: netip.MustParseAddrPort("[fd00::1]:1"), To: conn.To}).ID()); n != 37 {
		t.Errorf("an id with an IPv6 side has %d bytes", n)
	}
	if _, err := ParseConn(make([]byte, 14)); err == nil {
		t.Error("an id of 14 bytes is taken")
	}
}

// TestReviewsOfAnAgent has the cases of the contract's table.
func TestReviewsOfAnAgent(t *testing.T) {
	t.Parallel()
	one := func(d manager.InterceptDispositionType) *manager.InterceptInfo { return intercept("intercept-01", d) }
	two := func(d manager.InterceptDispositionType) *manager.InterceptInfo { return intercept("intercept-02", d) }
	other := intercept("intercept-03", waiting)
	other.Spec.PortIdentifier = "admin"
	strange := intercept("intercept-04", waiting)
	strange.Spec.ContainerName = "none"
	for _, c := range []struct {
		name  string
		lists [][]*manager.InterceptInfo
		want  string
	}{
		{"none", [][]*manager.InterceptInfo{{}}, ""},
		{"no ports and no client", [][]*manager.InterceptInfo{{one(manager.InterceptDispositionType_NO_PORTS), two(manager.InterceptDispositionType_NO_CLIENT)}}, ""},
		{
			"two wait",
			[][]*manager.InterceptInfo{{one(waiting), two(waiting)}},
			`intercept-01 ACTIVE; intercept-02 AGENT_ERROR Conflicts with the currently-waiting-to-be-served intercept "intercept-01"`,
		},
		{
			"one is served",
			[][]*manager.InterceptInfo{{one(waiting)}, {one(active), two(waiting)}},
			`intercept-01 ACTIVE; intercept-02 AGENT_ERROR Conflicts with the currently-served intercept "intercept-01"`,
		},
		{"none left, and again", [][]*manager.InterceptInfo{{one(active)}, {}, {two(waiting)}}, "intercept-02 ACTIVE"},
		{"another port", [][]*manager.InterceptInfo{{one(active), other}}, "intercept-03 ACTIVE"},
		{"no such container", [][]*manager.InterceptInfo{{strange}}, `intercept-04 AGENT_ERROR No match for container "none"`},
		{
			"a later one in order stays chosen",
			[][]*manager.InterceptInfo{{two(active)}, {one(waiting), two(active)}},
			`intercept-01 AGENT_ERROR Conflicts with the currently-served intercept "intercept-02"`,
		},
	} {
		r := newReviewer([]string{"app"})
		var got []string
		for _, list := range c.lists {
			for _, v := range r.handle(list) {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", v.GetId(), v.GetDisposition(), v.GetMessage())))
			}
		}
		if s := strings.Join(got, "; "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
}

func TestOlderAgentEndsItsSessionOnAnyError(t *testing.T) {
	t.Parallel()
	for _, rpc := range []string{"Remain", "WatchLookupDNS", "WatchDial", "WatchLogLevel", "WatchIntercepts", "ReviewIntercept"} {
		t.Run(rpc, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			f.say(rpc, codes.Aborted)
			if strings.HasPrefix(rpc, "Watch") {
				f.say(rpc, codes.Unimplemented)
			}
			a := StartOlderAgent(t.Context(), OlderAgentConfig{Dial: f.serve(t), Info: agentInfo(), Rhythm: quick})
			defer a.Close()
			if rpc == "ReviewIntercept" {
				push(t, f.snapshots, snapshot(intercept("i", waiting)))
			}
			e, mark := await(t, a.Record, 0, Is(Ended))
			if e.Err == nil || e.Session != "agent:1" {
				t.Errorf("ended: %v", e)
			}
			await(t, a.Record, 0, Is(Dropped))
			_, mark = await(t, a.Record, mark, Is(Departed))
			f.say(rpc, codes.OK)
			_, mark = await(t, a.Record, mark, Is(Arrived))
			await(t, a.Record, mark, Is(Ready))
		})
	}
}

func TestOlderAgentLivesOn(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.say("AgentLookupDNSResponse", codes.Internal)
	f.say("ReviewIntercept", codes.NotFound)
	a := StartOlderAgent(t.Context(), OlderAgentConfig{
		Dial: f.serve(t), Info: agentInfo(), Rhythm: quick, MountPoint: "/m", Environment: map[string]string{"A": "b"},
		Resolve: func(*manager.DNSRequest) *manager.DNSResponse { return &manager.DNSResponse{RCode: 3} },
	})
	await(t, a.Record, 0, Is(Ready))
	push(t, f.questions, &manager.DNSRequest{Name: "db.", Type: 1})
	if e, _ := await(t, a.Record, 0, About(Resolved, "db.")); e.Err == nil {
		t.Error("the answer should have failed")
	}
	push(t, f.snapshots, snapshot(intercept("i", waiting)))
	await(t, a.Record, 0, About(Reviewed, "i"))
	push(t, f.levels, &manager.LogLevelRequest{LogLevel: "trace"})
	await(t, a.Record, 0, About(Level, "trace"))
	for _, rpc := range []string{"WatchLookupDNS", "WatchDial", "WatchLogLevel"} {
		push(t, f.end(rpc), nil)
		await(t, a.Record, 0, About(Dead, rpc))
	}
	mark := a.Mark()
	await(t, a.Record, mark, Is(Remained))
	if n := a.Count(Ended); n != 0 {
		t.Errorf("it ended %d times", n)
	}
	a.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.review[0]; r.GetDisposition() != active || r.GetPodIp() != "10.0.0.5" || r.GetMountPoint() != "/m" ||
		r.GetEnvironment()["A"] != "b" || r.GetMechanismArgsDesc() != "all TCP connections" || r.GetSession().GetSessionId() != "agent:1" {
		t.Errorf("the review was %v", r)
	}
	if len(f.dns) != 1 || f.dns[0].GetRequest().GetName() != "db." || f.dns[0].GetResponse().GetRCode() != 3 {
		t.Errorf("the answers were %v", f.dns)
	}
	if f.calls["Depart"] != 1 {
		t.Errorf("%d Departs", f.calls["Depart"])
	}
}

// TestOlderAgentDropsInterceptsWithTheWatch: the end of its intercepts' stream,
// OK or not, ends the session.
func TestOlderAgentDropsInterceptsWithTheWatch(t *testing.T) {
	t.Parallel()
	f := newFake()
	a := StartOlderAgent(t.Context(), OlderAgentConfig{Dial: f.serve(t), Info: agentInfo(), Rhythm: quick})
	defer a.Kill()
	push(t, f.snapshots, snapshot(intercept("i", active)))
	await(t, a.Record, 0, About(Snapshot, "i=ACTIVE"))
	push(t, f.end("WatchIntercepts"), nil)
	await(t, a.Record, 0, Is(Ended))
	if n := len(a.Serves()); n != 0 {
		t.Errorf("it still serves %d", n)
	}
}

func TestKilledPeersDoNotDepart(t *testing.T) {
	t.Parallel()
	f := newFake()
	dial := f.serve(t)
	a := StartOlderAgent(t.Context(), OlderAgentConfig{Dial: dial, Info: agentInfo(), Rhythm: quick})
	await(t, a.Record, 0, Is(Ready))
	a.Kill()
	c := StartNewerClient(t.Context(), NewerClientConfig{Dial: dial, Info: new(manager.ClientInfo), Rhythm: quick})
	await(t, c.Record, 0, Is(Ready))
	c.Kill()
	if n := f.called("Depart"); n != 0 {
		t.Errorf("%d Departs", n)
	}
}

func TestNewerAgentComesBackWithReconnect(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.say("Remain", codes.Internal)
	a := StartNewerAgent(t.Context(), NewerAgentConfig{Dial: f.serve(t), Info: agentInfo(), Rhythm: quick})
	await(t, a.Record, 0, Is(Ready))
	push(t, f.deltas, &manager.InterceptInfoDelta{Upserts: map[string]*manager.InterceptInfo{"i": intercept("i", waiting)}})
	_, mark := await(t, a.Record, 0, About(Reviewed, "i"))
	f.say("ReconnectAgent", codes.Unavailable)
	f.say("WatchInterceptsDelta", codes.Unimplemented)
	push(t, f.end("WatchInterceptsDelta"), status.Error(codes.Unavailable, "gone"))
	e, mark := await(t, a.Record, mark, Is(Reconnected))
	if e.Err == nil {
		t.Error("ReconnectAgent should have failed")
	}
	f.say("ReconnectAgent", codes.OK)
	_, mark = await(t, a.Record, mark, func(e Event) bool { return e.Kind == Reconnected && e.Err == nil })
	await(t, a.Record, mark, Is(Snapshot))
	if f.called("WatchIntercepts") == 0 {
		t.Error("it did not step down to snapshots")
	}
	if a.Count(Arrived) != 1 || a.Count(Ended) != 0 {
		t.Errorf("arrived %d times, ended %d times", a.Count(Arrived), a.Count(Ended))
	}
	await(t, a.Record, a.Mark(), Is(Remained))
	a.Close()
	if f.called("Depart") != 1 {
		t.Error("no Depart")
	}
}

func TestOlderClientAndItsKeepalive(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code codes.Code
		ends bool
	}{{codes.NotFound, true}, {codes.Unavailable, true}, {codes.Aborted, false}, {codes.DeadlineExceeded, false}, {codes.Internal, false}} {
		t.Run(c.code.String(), func(t *testing.T) {
			t.Parallel()
			f := newFake()
			p := StartOlderClient(t.Context(), OlderClientConfig{Dial: f.serve(t), Info: new(manager.ClientInfo), Rhythm: quick})
			defer p.Close()
			await(t, p.Record, 0, Is(Ready))
			f.say("Remain", c.code)
			failed := func(e Event) bool { return e.Kind == Remained && e.Err != nil }
			_, mark := await(t, p.Record, 0, failed)
			if !c.ends {
				await(t, p.Record, mark, failed)
				if p.Count(Ended) != 0 {
					t.Error("it gave up")
				}
				return
			}
			await(t, p.Record, mark, Is(Ended))
			_, mark = await(t, p.Record, mark, Is(Departed))
			f.say("Remain", codes.OK)
			await(t, p.Record, mark, Is(Arrived)) // the Depart was answered, so the session is forgotten
		})
	}
}

func TestOlderClientReusesASessionThatItCouldNotDepart(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := StartOlderClient(t.Context(), OlderClientConfig{Dial: f.serve(t), Info: new(manager.ClientInfo), Rhythm: quick})
	defer p.Close()
	await(t, p.Record, 0, Is(Ready))
	f.say("Depart", codes.Unavailable)
	f.say("Version", codes.Unavailable) // the manager is away
	f.say("Remain", codes.Unavailable)
	_, mark := await(t, p.Record, 0, Is(Departed))
	_, mark = await(t, p.Record, mark, Is(Failed))
	f.say("Remain", codes.OK)
	f.say("Version", codes.OK)
	e, _ := await(t, p.Record, mark, func(e Event) bool { return e.Kind == Arrived || e.Kind == Reused })
	if e.Kind != Reused || e.Session != "client-1" {
		t.Errorf("it came back as %v", e)
	}
}

func TestOlderClientsWatches(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := StartOlderClient(t.Context(), OlderClientConfig{Dial: f.serve(t), Info: new(manager.ClientInfo), Rhythm: quick, Root: true})
	defer p.Close()
	push(t, f.snapshots, snapshot(intercept("i", active)))
	_, mark := await(t, p.Record, 0, About(Snapshot, "i=ACTIVE"))
	push(t, f.end("WatchIntercepts"), status.Error(codes.Internal, "broken"))
	e, mark := await(t, p.Record, mark, Is(Snapshot))
	if e.Subject != "" {
		t.Errorf("a broken watch is no empty snapshot but %q", e.Subject)
	}
	push(t, f.snapshots, snapshot(intercept("i", active))) // it is open again
	await(t, p.Record, mark, About(Snapshot, "i=ACTIVE"))
	again := func(rpc string, err error, dead bool) {
		t.Helper()
		mark := p.Mark()
		n := f.called(rpc)
		push(t, f.end(rpc), err)
		await(t, p.Record, mark, About(Broken, rpc))
		if dead {
			await(t, p.Record, mark, About(Dead, rpc))
			return
		}
		for f.called(rpc) == n {
			await(t, p.Record, p.Mark(), Is(Remained)) // a tick
		}
	}
	again("WatchDial", nil, false)
	again("WatchAgentPods", status.Error(codes.Unavailable, ""), false)
	again("WatchAgentPods", nil, true)
	again("WatchClusterInfo", nil, false)
	again("WatchClusterInfo", status.Error(codes.Internal, ""), false)
	again("WatchClusterInfo", status.Error(codes.Canceled, ""), true)
}

func TestOlderClientToleratesOnlyMissingKinds(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.say("GetKnownWorkloadKinds", codes.Internal)
	f.say("GetClientConfig", codes.Internal)
	p := StartOlderClient(t.Context(), OlderClientConfig{Dial: f.serve(t), Info: new(manager.ClientInfo), Rhythm: quick})
	defer p.Close()
	_, mark := await(t, p.Record, 0, Is(Failed))
	f.say("GetKnownWorkloadKinds", codes.Unimplemented)
	await(t, p.Record, mark, Is(Ready))
}

func TestNewerClientReconnects(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := StartNewerClient(t.Context(), NewerClientConfig{Dial: f.serve(t), Info: &manager.ClientInfo{Name: "alice", Namespace: "default"}, Rhythm: quick, Root: true})
	defer p.Close()
	await(t, p.Record, 0, func(e Event) bool { return e.Kind == Pods })
	if f.called("WatchAgentPods") != 1 {
		t.Error("it did not step down to the pods' snapshots")
	}
	push(t, f.deltas, &manager.InterceptInfoDelta{Upserts: map[string]*manager.InterceptInfo{"i": intercept("i", active)}})
	_, mark := await(t, p.Record, 0, About(Snapshot, "i=ACTIVE"))
	f.say("Remain", codes.DeadlineExceeded)
	_, mark = await(t, p.Record, mark, Is(Reconnected))
	f.say("Remain", codes.OK)
	await(t, p.Record, mark, Is(Snapshot))
	f.mu.Lock()
	if r := f.resume[0]; r.GetSession().GetSessionId() != "client-1" || r.GetClient().GetName() != "alice" || len(r.GetIntercepts()) != 1 {
		t.Errorf("ReconnectClient was %v", r)
	}
	f.mu.Unlock()
	if p.Count(Arrived) != 1 {
		t.Errorf("it arrived %d times", p.Count(Arrived))
	}
	// A session that is gone is a new one.
	f.say("ReconnectClient", codes.NotFound)
	f.say("Remain", codes.NotFound)
	mark = p.Mark()
	await(t, p.Record, mark, Is(Failed))
	f.say("Remain", codes.OK)
	await(t, p.Record, mark, Is(Arrived))
}

// TestTunnelOfAVisit: the agent's side opens, names the client and sends data at
// once; the client answers the request with the same connection.
func TestTunnelOfAVisit(t *testing.T) {
	t.Parallel()
	f := newFake()
	dial := f.serve(t)
	a := StartOlderAgent(t.Context(), OlderAgentConfig{Dial: dial, Info: agentInfo(), Rhythm: quick})
	defer a.Kill()
	push(t, f.snapshots, snapshot(intercept("i", waiting)))
	await(t, a.Record, 0, About(Reviewed, "i"))
	push(t, f.snapshots, snapshot(intercept("i", active)))
	await(t, a.Record, 0, About(Snapshot, "i=ACTIVE"))
	ctx := ctxOf(t)
	conn := Conn{From: netip.MustParseAddrPort("10.0.0.9:40000"), To: netip.MustParseAddrPort("127.0.0.1:9090"), Protocol: TCP}
	if _, err := a.Visit(ctx, "none", conn); err != ErrNotServed {
		t.Errorf("a visit of what is not served: %v", err)
	}
	visits := make(chan error, 1)
	var tun *Tunnel
	go func() {
		var err error
		tun, err = a.Visit(ctx, "i", conn)
		visits <- err
	}()
	up := <-f.tunnels
	recv := func(want Code) []byte {
		t.Helper()
		m, err := up.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseFrame(m.GetPayload())
		if err != nil || got.Code != want {
			t.Fatalf("code %d, want %d", got.Code, want)
		}
		return got.Body
	}
	info := recv(StreamInfo)
	if !bytes.Contains(info, conn.ID()) || !bytes.HasSuffix(info, []byte("agent:1")) {
		t.Errorf("StreamInfo %x", info)
	}
	send := func(f Frame) {
		t.Helper()
		if err := up.Send(&manager.TunnelMessage{Payload: f.payload()}); err != nil {
			t.Fatal(err)
		}
	}
	send(Frame{StreamOK, []byte{2}})
	if got := string(recv(Session)); got != "client-9" {
		t.Errorf("the client is %q", got)
	}
	if err := <-visits; err != nil {
		t.Fatal(err)
	}
	if _, err := tun.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := string(recv(Normal)); got != "hello" {
		t.Errorf("got %q", got)
	}
	send(Frame{Code: DialOK})
	send(Frame{Code: KeepAlive})
	send(Frame{Normal, []byte("hi")})
	send(Frame{Code: CloseSend})
	if got, err := tun.RecvData(); err != nil || string(got) != "hi" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := tun.RecvData(); err != io.EOF {
		t.Errorf("after closeSend: %v", err)
	}
	if err := tun.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := up.Recv(); err != io.EOF {
		t.Errorf("after the agent's half close: %v", err)
	}
	push(t, f.end("Tunnel"), nil)
}

func TestClientAnswersADialRequest(t *testing.T) {
	t.Parallel()
	f := newFake()
	c := StartOlderClient(t.Context(), OlderClientConfig{Dial: f.serve(t), Info: new(manager.ClientInfo), Rhythm: quick, Limits: Limits{Tunnels: 1}})
	defer c.Close()
	await(t, c.Record, 0, Is(Ready))
	conn := Conn{From: netip.MustParseAddrPort("10.0.0.9:40000"), To: netip.MustParseAddrPort("127.0.0.1:9090"), Protocol: TCP}
	push(t, f.dials, &manager.DialRequest{ConnId: conn.ID(), DialTimeout: int64(time.Second)})
	down := <-f.tunnels
	if m, err := down.Recv(); err != nil || !bytes.Contains(m.GetPayload(), conn.ID()) || !bytes.HasSuffix(m.GetPayload(), []byte("client-1")) {
		t.Fatalf("%x, %v", m.GetPayload(), err)
	}
	// Another one is too many.
	push(t, f.dials, &manager.DialRequest{ConnId: conn.ID()})
	await(t, c.Record, 0, Is(Refused))
	for _, frame := range []Frame{{StreamOK, []byte{2}}, {Normal, []byte("echo me")}} {
		if err := down.Send(&manager.TunnelMessage{Payload: frame.payload()}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"\x04", "\x00echo me"} {
		if m, err := down.Recv(); err != nil || string(m.GetPayload()) != want {
			t.Fatalf("%q, %v, want %q", m.GetPayload(), err, want)
		}
	}
	push(t, f.end("Tunnel"), nil)
	if e, _ := await(t, c.Record, 0, Is(Tunnelled)); e.Err != nil {
		t.Error(e)
	}
}

func TestRecordIsBounded(t *testing.T) {
	t.Parallel()
	r := newRecord(4)
	for i := range 10 {
		r.add(Event{Kind: Level, Subject: fmt.Sprint(i)})
	}
	if r.Count(Level) != 10 || r.Lost() != 6 || r.Mark() != 10 {
		t.Errorf("counted %d, lost %d, mark %d", r.Count(Level), r.Lost(), r.Mark())
	}
	var got string
	for _, e := range r.Since(0) {
		got += e.Subject
	}
	if got != "6789" {
		t.Errorf("kept %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.Wait(ctx, 0, About(Level, "5")); err == nil {
		t.Error("waited for what is gone, without an error")
	}
}

// TestManyPeersShareAConnection: all arrive and become ready over one.
func TestManyPeersShareAConnection(t *testing.T) {
	t.Parallel()
	f := newFake()
	conn, release, err := f.serve(t)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	const each = 200
	slow := Rhythm{Remain: 5 * time.Second}
	type running interface {
		Wait(context.Context, uint64, func(Event) bool) (Event, uint64, error)
		Kill()
	}
	var peers []running
	for range each {
		d, l := Shared(conn), Limits{Record: 16}
		peers = append(peers,
			StartOlderAgent(t.Context(), OlderAgentConfig{Dial: d, Info: agentInfo(), Rhythm: slow, Limits: l}),
			StartNewerAgent(t.Context(), NewerAgentConfig{Dial: d, Info: agentInfo(), Rhythm: slow, Limits: l}),
			StartOlderClient(t.Context(), OlderClientConfig{Dial: d, Info: new(manager.ClientInfo), Rhythm: slow, Limits: l}),
			StartNewerClient(t.Context(), NewerClientConfig{Dial: d, Info: new(manager.ClientInfo), Rhythm: slow, Limits: l}))
	}
	for i, p := range peers {
		if _, _, err := p.Wait(ctxOf(t), 0, Is(Ready)); err != nil {
			t.Errorf("peer %d: %v", i, err)
		}
	}
	for _, p := range peers {
		p.Kill()
	}
	if n := f.called("ArriveAsAgent") + f.called("ArriveAsClient"); n != 4*each {
		t.Errorf("%d arrivals of %d peers", n, 4*each)
	}
}
