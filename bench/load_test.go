package bench

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// fake is a server that takes everything. The first one leads.
type fake struct {
	operatorsvc.UnimplementedOperatorServer
	name  string
	puts  atomic.Int64
	gets  atomic.Int64
	fails atomic.Bool
}

func (f *fake) Status(context.Context, *operatorv1.StatusRequest) (*operatorv1.StatusResponse, error) {
	return &operatorv1.StatusResponse{Server: f.name, Leader: hostName(0)}, nil
}

func (f *fake) PutConfig(_ context.Context, req *operatorv1.PutConfigRequest) (*operatorv1.PutConfigResponse, error) {
	if f.fails.Load() || len(req.GetValue()) == 0 {
		return nil, errors.New("no")
	}
	f.puts.Add(1)
	return new(operatorv1.PutConfigResponse), nil
}

func (f *fake) GetConfig(context.Context, *operatorv1.GetConfigRequest) (*operatorv1.GetConfigResponse, error) {
	f.gets.Add(1)
	return new(operatorv1.GetConfigResponse), nil
}

func (f *fake) PutConfigStream(s grpc.BidiStreamingServer[operatorv1.PutConfigRequest, operatorv1.PutConfigResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
		f.puts.Add(1)
		if err := s.Send(new(operatorv1.PutConfigResponse)); err != nil {
			return err
		}
	}
}

// fakes is a store of three of them, beside processes that do nothing.
func fakes(t *testing.T) (*store, []*fake) {
	t.Helper()
	st := &store{dialect: trivetDialect{}, name: "fake", site: &site{dir: t.TempDir()}, creds: insecure.NewCredentials()}
	var all []*fake
	for i := range servers {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f := &fake{name: hostName(i)}
		srv := grpc.NewServer()
		operatorsvc.RegisterOperatorServer(srv, f)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(ln) }()
		t.Cleanup(func() { srv.Stop(); <-served })
		p := newProc(t, "exec sleep 1000")
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		st.procs, st.addresses, all = append(st.procs, p), append(st.addresses, ln.Addr().String()), append(all, f)
		cc, err := st.dial(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		st.control = append(st.control, cc)
	}
	return st, all
}

func TestLoadGoesWhereItIsSent(t *testing.T) {
	for name, c := range map[string]struct {
		load  load
		other bool // servers that do not lead get some of it
		count func(*fake) int64
	}{
		"puts to the leader": {load{op: put, workers: 3}, false, func(f *fake) int64 { return f.puts.Load() }},
		"puts, spread":       {load{op: put, workers: 1, spread: true}, true, func(f *fake) int64 { return f.puts.Load() }},
		"stale gets, spread": {load{op: getStale, workers: 4, spread: true}, true, func(f *fake) int64 { return f.gets.Load() }},
		"a stream each":      {load{op: putStream, workers: 3}, false, func(f *fake) int64 { return f.puts.Load() }},
		"one stream for all": {load{op: putStream, workers: 7, streams: 1}, false, func(f *fake) int64 { return f.puts.Load() }},
	} {
		t.Run(name, func(t *testing.T) {
			st, all := fakes(t)
			c.load.duration = 50 * time.Millisecond
			got, err := c.load.run(t.Context(), st)
			if err != nil {
				t.Fatal(err)
			}
			if got.perSecond <= 0 || got.p50 <= 0 || got.p99 < got.p50 {
				t.Errorf("got %+v", got)
			}
			if c.count(all[0]) == 0 {
				t.Error("the leader got nothing")
			}
			if some := c.count(all[1]) > 0 && c.count(all[2]) > 0; some != c.other {
				t.Errorf("the others got %d and %d", c.count(all[1]), c.count(all[2]))
			}
		})
	}
}

func TestLoadEndsWithTheFirstError(t *testing.T) {
	st, all := fakes(t)
	all[0].fails.Store(true)
	if _, err := (load{op: put, workers: 2, duration: time.Hour}).run(t.Context(), st); err == nil {
		t.Error("a load on a server that refuses was measured")
	}
}

func TestWorkersHaveKeysOfTheirOwn(t *testing.T) {
	l := load{workers: 64}
	seen := make(map[string]bool)
	for w := range l.workers {
		for n := range 100 {
			key := l.key(w, n)
			if len(key) != 8 || seen[key] {
				t.Fatalf("worker %d, write %d: key %q", w, n, key)
			}
			seen[key] = true
		}
	}
}

func TestCasesAreChosenWithWhatTheyAreComparedWith(t *testing.T) {
	var got []string
	for _, c := range keep(raftCases(time.Second), []string{"put stream, 64"}) {
		got = append(got, c.name)
	}
	want := []string{"put, 64 writers, to the leader", "put stream, 64 writers, to the leader"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, target := range raftTargetList() {
		if len(keep(raftCases(time.Second), []string{target.name})) == 0 {
			t.Errorf("no case of the target %q", target.name)
		}
	}
}

func TestProbesTellWhenAServerTookAWrite(t *testing.T) {
	st, all := fakes(t)
	p, err := connectProbes(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	all[1].fails.Store(true)
	p.start(t.Context(), st, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := until(ctx, func() (bool, error) { _, ok := p.after(at, 2); return ok, nil }); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.after(at, 1); ok {
		t.Error("a server that refuses took a write")
	}
	if _, ok := p.after(at, 0); ok {
		t.Error("the server that was left out took a write")
	}
	all[1].fails.Store(false)
	if err := until(ctx, func() (bool, error) { _, ok := p.after(at, 1); return ok, nil }); err != nil {
		t.Fatal(err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}
