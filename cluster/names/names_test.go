package names_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"trivet/cluster/names"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// zone answers from a table: what is not there is not found.
type zone struct {
	net.Resolver
	ips map[string][]string
	// fails is what lookups of a name fail with.
	fails map[string]error

	mu    sync.Mutex
	asked []string // guarded by mu
}

func (z *zone) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	z.asked = append(z.asked, host)
	z.mu.Unlock()
	if err := z.fails[host]; err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, ip := range z.ips[host] {
		out = append(out, netip.MustParseAddr(ip))
	}
	if out == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return out, nil
}

func (z *zone) LookupAddr(_ context.Context, addr string) ([]string, error) {
	return []string{"host-of-" + strings.ReplaceAll(addr, ":", "-") + "."}, nil
}

func (z *zone) LookupCNAME(_ context.Context, host string) (string, error) {
	return "canonical." + host, nil
}

func (z *zone) LookupMX(context.Context, string) ([]*net.MX, error) {
	return []*net.MX{{Host: "mail.", Pref: 10}}, nil
}

func (z *zone) LookupNS(context.Context, string) ([]*net.NS, error) {
	return []*net.NS{{Host: "ns."}}, nil
}

func (z *zone) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	return "", []*net.SRV{{Target: "t.", Port: 80, Priority: 1, Weight: 2}}, nil
}

func (z *zone) LookupTXT(context.Context, string) ([]string, error) {
	return []string{"a", strings.Repeat("b", 300)}, nil
}

const domain = "cluster.local."

// TestRecordsAreInWireForm: the bytes were computed from RFC 1035, 2782 and 3596.
func TestRecordsAreInWireForm(t *testing.T) {
	z := &zone{ips: map[string][]string{"localhost.": {"127.0.0.1", "::1"}, "six.": {"::1"}}}
	r := names.NewResolver(z)
	const local = "096c6f63616c686f737400"
	for _, c := range []struct {
		name string
		t    names.Type
		want string
	}{
		{"localhost.", names.A, local + "0001" + "0001" + "00000004" + "0004" + "7f000001"},
		{"localhost.", names.AAAA, local + "001c" + "0001" + "00000004" + "0010" + "00000000000000000000000000000001"},
		// There, but without a record of that type.
		{"six.", names.A, ""},
		{"4.3.2.1.in-addr.arpa.", names.PTR, "013401330132013107696e2d61646472046172706100" + "000c" + "0001" + "00000004" + "0011" + hexName("host-of-1.2.3.4.")},
		{"localhost.", names.CNAME, local + "0005" + "0001" + "00000004" + "0015" + hexName("canonical.localhost.")},
		{"localhost.", names.MX, local + "000f" + "0001" + "00000004" + "0008" + "000a" + hexName("mail.")},
		{"localhost.", names.NS, local + "0002" + "0001" + "00000004" + "0004" + hexName("ns.")},
		{"localhost.", names.SRV, local + "0021" + "0001" + "00000004" + "0009" + "000100020050" + hexName("t.")},
		{"localhost.", names.TXT, local + "0010" + "0001" + "00000004" + "0002" + "0161" + local + "0010" + "0001" + "00000004" + "012e" + "ff" + strings.Repeat("62", 255) + "2d" + strings.Repeat("62", 45)},
	} {
		got, err := r.Query(t.Context(), names.Scope{Domain: domain}, c.name, c.t)
		if err != nil || got.GetRCode() != 0 || hex.EncodeToString(got.GetRrs()) != c.want {
			t.Errorf("%s %d:\n got %x (code %d, %v)\nwant %s", c.name, c.t, got.GetRrs(), got.GetRCode(), err, c.want)
		}
	}
}

// hexName is a name in wire form.
func hexName(name string) string {
	var b []byte
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return hex.EncodeToString(append(b, 0))
}

func TestNamesAreMeantInTheClientsNamespace(t *testing.T) {
	z := &zone{ips: map[string][]string{"web.shop.": {"10.0.0.1"}, "web.": {"10.9.9.9"}, "api.other.shop.": {"10.0.0.2"}, "far.example.": {"192.0.2.1"}}}
	r := names.NewResolver(z)
	pods := map[string][]netip.Addr{"shop/worker": {netip.MustParseAddr("10.1.0.1")}}
	scope := names.Scope{Namespace: "shop", Domain: domain, Workload: func(ns, name string) []netip.Addr { return pods[ns+"/"+name] }}
	for name, want := range map[string]string{
		"web.":                            "10.0.0.1", // not the one outside
		"api.other.":                      "10.0.0.2",
		"far.example.":                    "192.0.2.1",
		"nobody.":                         "",
		"nobody.svc.cluster.local.":       "",
		"worker.":                         "10.1.0.1",
		"worker.shop.":                    "10.1.0.1",
		"worker.shop.svc.cluster.local.":  "10.1.0.1",
		"worker.other.svc.cluster.local.": "",
	} {
		ips, err := r.Addresses(t.Context(), scope, name)
		got := ""
		if len(ips) > 0 {
			got = ips[0].String()
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
		resp, err := r.Query(t.Context(), scope, name, names.A)
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case want == "" && (resp.GetRCode() != names.NameError || len(resp.GetRrs()) != 0):
			t.Errorf("%s: code %d, %x; want that there is no such name", name, resp.GetRCode(), resp.GetRrs())
		case want != "" && !strings.HasPrefix(hex.EncodeToString(resp.GetRrs()), hexName(name)):
			t.Errorf("%s: the answer is not about the name that was asked for: %x", name, resp.GetRrs())
		}
	}
	// Names below the cluster's domain are complete.
	if slices.Contains(z.asked, "nobody.svc.cluster.local.shop.") {
		t.Error("the namespace was put behind the cluster's domain")
	}
}

func TestFailuresHaveTheContractsCodes(t *testing.T) {
	temporary := &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	timeout := &net.DNSError{Err: "i/o timeout", IsTimeout: true, IsTemporary: true}
	z := &zone{fails: map[string]error{"tmp.": temporary, "late.": timeout, "odd.": errors.New("odd")}}
	r := names.NewResolver(z)
	for _, c := range []struct {
		name     string
		t        names.Type
		response int32
		code     codes.Code
	}{
		{"tmp.", names.A, names.ServerFailure, codes.Unavailable},
		{"late.", names.AAAA, names.ServerFailure, codes.DeadlineExceeded},
		{"odd.", names.A, names.ServerFailure, codes.Internal},
		{"any.", 255, names.NotImplemented, codes.Unimplemented},
	} {
		_, err := r.Query(t.Context(), names.Scope{Domain: domain}, c.name, c.t)
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		response, status := names.Failure(err)
		if response != c.response || errs.Code(status) != c.code {
			t.Errorf("%s: %d, %v; want %d, %v", c.name, response, errs.Code(status), c.response, c.code)
		}
	}
	// A failure is not taken for a name that is not there, in whatever order they
	// are looked up.
	if _, err := r.Query(t.Context(), names.Scope{Namespace: "shop", Domain: domain}, "tmp.", names.A); err == nil {
		t.Error("a failed lookup was answered")
	}
}

// TestEqualQuestionsHaveAnAnswerEach: also when they are under way at the same
// time and are answered in another order.
func TestEqualQuestionsHaveAnAnswerEach(t *testing.T) {
	b := names.NewBroker()
	s := b.Open("agent:a")
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	const n = 8
	got := make(chan string, n)
	for i := range n {
		go func() {
			r, err := b.Ask(ctx, "agent:a", &manager.DNSRequest{Session: &manager.SessionInfo{SessionId: fmt.Sprint("client-", i)}, Name: "web.", Type: 1})
			got <- fmt.Sprintf("client-%d: %s %v", i, r.GetRrs(), err)
		}()
	}
	var asked []*manager.DNSRequest
	for range n {
		asked = append(asked, <-s.Questions())
	}
	for _, q := range slices.Backward(asked) {
		// An answer is sent back with the question as it was handed out.
		if !b.Answer(&manager.DNSAgentResponse{
			Session: &manager.SessionInfo{SessionId: "agent:a"}, Request: q, Response: &manager.DNSResponse{Rrs: []byte(q.GetSession().GetSessionId())},
		}) {
			t.Error("an answer was dropped")
		}
	}
	for range n {
		text := <-got
		who, what, _ := strings.Cut(text, ": ")
		if what != who+" <nil>" {
			t.Error(text)
		}
	}
	if b.Answer(&manager.DNSAgentResponse{Session: &manager.SessionInfo{SessionId: "agent:a"}, Request: asked[0]}) {
		t.Error("a second answer was taken")
	}
	if st := b.Stats(); st != (names.Stats{Asked: n, Answered: n, Dropped: 1}) {
		t.Errorf("%+v", st)
	}
}

func TestAgentThatDoesNotAnswerIsBounded(t *testing.T) {
	b := names.NewBroker()
	if _, err := b.Ask(t.Context(), "agent:a", &manager.DNSRequest{Name: "web."}); !errors.Is(err, names.ErrNotHere) {
		t.Errorf("without a stream: %v", err)
	}
	s := b.Open("agent:a")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	busy := make(chan struct{}, 1)
	for range 100 {
		wg.Go(func() {
			_, err := b.Ask(ctx, "agent:a", &manager.DNSRequest{Name: "web."})
			if errors.Is(err, names.ErrBusy) {
				select {
				case busy <- struct{}{}:
				default:
				}
			}
		})
	}
	<-busy
	cancel()
	wg.Wait()
	s.Close()
	if _, err := b.Ask(t.Context(), "agent:a", &manager.DNSRequest{Name: "web."}); !errors.Is(err, names.ErrNotHere) {
		t.Errorf("after its end: %v", err)
	}
	// An older agent that sends no correlation back answers the oldest of its kind.
	s = b.Open("agent:a")
	defer s.Close()
	out := make(chan *manager.DNSResponse, 1)
	go func() {
		r, _ := b.Ask(t.Context(), "agent:a", &manager.DNSRequest{Name: "web.", Type: 1})
		out <- r
	}()
	<-s.Questions()
	if !b.Answer(&manager.DNSAgentResponse{Session: &manager.SessionInfo{SessionId: "agent:a"}, Request: &manager.DNSRequest{Name: "web.", Type: 1}, Response: &manager.DNSResponse{RCode: 3}}) {
		t.Error("the answer was dropped")
	}
	if r := <-out; r.GetRCode() != 3 {
		t.Errorf("answered %v", r)
	}
}

func FuzzNames(f *testing.F) {
	for _, name := range []string{"", ".", "a.", "localhost.", "4.3.2.1.in-addr.arpa.", strings.Repeat("1.", 32) + "ip6.arpa.", "a..b.", strings.Repeat("x", 64) + "."} {
		f.Add(name, uint16(1))
		f.Add(name, uint16(12))
	}
	r := names.NewResolver(&zone{ips: map[string][]string{"localhost.": {"127.0.0.1"}}})
	f.Fuzz(func(t *testing.T, name string, kind uint16) {
		if !names.ValidName(name) {
			return
		}
		out, err := r.Query(t.Context(), names.Scope{Namespace: "shop", Domain: domain}, name, names.Type(kind))
		if err != nil {
			if _, status := names.Failure(err); errs.Code(status) == codes.OK {
				t.Errorf("%v", err)
			}
			return
		}
		if out.GetRCode() == names.NameError && len(out.GetRrs()) > 0 {
			t.Errorf("no such name, and records %x", out.GetRrs())
		}
	})
}
