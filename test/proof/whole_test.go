package proof

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/test/systest"
)

// The state is of a size that takes a while to write.
const (
	fillKeys  = 40
	fillBytes = 64 << 10
	writeWait = 2 * time.Second
	// writePause leaves the machine to the operations.
	writePause = 5 * time.Millisecond
	// wholeWithin is how long a cluster may take to be whole once all servers
	// run again.
	wholeWithin = 30 * time.Second
)

func (s *steps) fill(t *testing.T) {
	t.Helper()
	for n := range fillKeys {
		s.put(t, fmt.Sprintf("fill-%d", n), strings.Repeat("x", fillBytes))
	}
}

func (s *steps) put(t *testing.T, key, value string) {
	t.Helper()
	n := 0
	systest.Eventually(t, wholeWithin, "a write is acknowledged", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), writeWait)
		defer cancel()
		n++
		_, err := s.c.Ops.Clients[n%3].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: key, Value: []byte(value)})
		return err
	})
}

// marker is the marker as all servers have it.
func (s *steps) marker(t *testing.T) (value string) {
	t.Helper()
	systest.Eventually(t, wholeWithin, "the servers have one marker", func() error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), engine.MetaConsistency, "linearizable")
		for i, op := range s.c.Ops.Clients {
			cctx, cancel := context.WithTimeout(ctx, writeWait)
			r, err := op.GetConfig(cctx, &operatorv1.GetConfigRequest{Key: "marker"})
			cancel()
			if err != nil {
				return err
			}
			if got := string(r.GetValue()); i > 0 && got != value {
				return fmt.Errorf("%s has %q, the first server %q", s.c.Dev.Servers[i].Name, got, value)
			}
			value = string(r.GetValue())
		}
		return nil
	})
	return value
}

func (s *steps) epoch(t *testing.T) (epoch uint64) {
	t.Helper()
	systest.Eventually(t, wholeWithin, "a server tells the restore epoch", func() error {
		r, err := s.c.Ops.Clients[0].RaftInfo(t.Context(), &operatorv1.RaftInfoRequest{})
		epoch = r.GetRestoreEpoch()
		return err
	})
	return epoch
}

func (s *steps) peers(t *testing.T) (out []*operatorv1.Peer) {
	t.Helper()
	n := 0
	systest.Eventually(t, wholeWithin, "a server lists its peers", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), writeWait)
		defer cancel()
		n++
		r, err := s.c.Ops.Clients[n%3].ListPeers(ctx, &operatorv1.ListPeersRequest{})
		out = r.GetPeers()
		return err
	})
	return out
}

// members wants so many voters, and nobody else, with one leader, by every
// server that is one of them.
func (s *steps) members(t *testing.T, want int) {
	t.Helper()
	if err := s.c.Dev.WaitAllReady(systest.Deadline(t, wholeWithin)); err != nil {
		t.Fatal(err)
	}
	ops, err := s.c.Dev.Operators(systest.Deadline(t, wholeWithin))
	if err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	systest.Eventually(t, wholeWithin, fmt.Sprintf("there are %d voters", want), func() error {
		first := ""
		for i, op := range ops.Clients {
			r, err := op.ListPeers(t.Context(), &operatorv1.ListPeersRequest{})
			if err != nil {
				return err
			}
			leader, voters := "", 0
			for _, p := range r.GetPeers() {
				if p.GetVoter() {
					voters++
				}
				if p.GetLeader() {
					leader += p.GetId()
				}
			}
			if first == "" {
				first = leader
			}
			if voters != want || len(r.GetPeers()) != want || leader == "" || leader != first {
				return fmt.Errorf("%s shows %v", s.c.Dev.Servers[i].Name, r.GetPeers())
			}
		}
		return nil
	})
	s.w.pause()
	defer s.w.resume()
	if _, err := ops.SameState(systest.Deadline(t, wholeWithin)); err != nil {
		t.Fatal(err)
	}
}

// whole wants what must hold after any operation, interrupted or not.
func (s *steps) whole(t *testing.T) {
	t.Helper()
	s.members(t, 3)
	s.kept(t)
	if r := s.c.Trivet(t, systest.ClientContext, "intercept", "list"); r.Code != 0 {
		t.Errorf("a client's call: %s", r.Err)
	}
	s.login(t)
	for _, p := range s.c.Dev.Servers {
		dir := s.c.Dev.DataDir(p.Name)
		// Snapshots are taken all the time: what is being written is not left over.
		systest.Eventually(t, wholeWithin, "nothing is left over", func() error {
			return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err == nil && (strings.Contains(e.Name(), ".tmp") || strings.HasPrefix(e.Name(), "incoming")) {
					err = fmt.Errorf("left over: %s", path)
				}
				return err
			})
		})
	}
}

// kept wants all acknowledged writes on every server.
func (s *steps) kept(t *testing.T) {
	t.Helper()
	s.w.pause()
	defer s.w.resume()
	ctx := metadata.AppendToOutgoingContext(t.Context(), engine.MetaConsistency, "linearizable")
	keys := s.w.acked()
	if len(keys) == 0 {
		t.Error("no write was acknowledged")
	}
	for i, op := range s.c.Ops.Clients {
		for key := range keys {
			systest.Eventually(t, wholeWithin, "a read is answered", func() error {
				_, err := op.GetConfig(ctx, &operatorv1.GetConfigRequest{Key: key})
				if errs.Code(err) == codes.NotFound {
					t.Fatalf("%s has lost the acknowledged write %s", s.c.Dev.Servers[i].Name, key)
				}
				return err
			})
		}
	}
	s.w.seen(keys)
}

func (s *steps) token(t *testing.T, role, name string) string {
	t.Helper()
	r := s.c.Trivet(t, systest.OperatorContext, "token", "create", "--role", role, "--name", name)
	if r.Code != 0 {
		t.Fatalf("make a token: %s", r.Err)
	}
	return string(bytes.TrimSpace([]byte(r.Out)))
}

// login gets a certificate for a new token, and uses it.
func (s *steps) login(t *testing.T) {
	t.Helper()
	token := s.token(t, "viewer", s.name("visitor"))
	env := []string{"TRIVET_CONFIG=" + filepath.Join(t.TempDir(), "context.yaml")}
	r := systest.Trivet(t, env, "login", "--token", token, "--server", s.c.Dev.Addresses[s.rnd.IntN(3)])
	if r.Code != 0 {
		t.Fatalf("log in: %s", r.Err)
	}
	if r := systest.Trivet(t, env, "session", "list"); r.Code != 0 {
		t.Errorf("use a new certificate: %s", r.Err)
	}
}

// keyWriter writes new keys, one after the other, until it is stopped.
type keyWriter struct {
	stop func()
	gate sync.Mutex // held by who must not see writes

	mu    sync.Mutex
	since time.Time       // guarded by mu; writes that began before do not count
	keys  map[string]bool // guarded by mu; acknowledged and not looked for yet, and every tenth of those
}

func startKeyWriter(c *systest.Cluster) *keyWriter {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	w := &keyWriter{keys: make(map[string]bool)}
	w.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		for n := 0; ctx.Err() == nil; n++ {
			w.gate.Lock()
			began, key := time.Now(), fmt.Sprintf("w-%d", n)
			wctx, cancel := context.WithTimeout(ctx, writeWait)
			_, err := c.Ops.Clients[n%3].PutConfig(wctx, &operatorv1.PutConfigRequest{Key: key, Value: []byte("v")})
			cancel()
			if err == nil {
				w.ack(key, began)
			}
			w.gate.Unlock()
			<-time.After(writePause)
		}
	}()
	return w
}

func (w *keyWriter) pause()  { w.gate.Lock() }
func (w *keyWriter) resume() { w.gate.Unlock() }

func (w *keyWriter) ack(key string, began time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if began.After(w.since) {
		w.keys[key] = true
	}
}

// acked are the writes that every server must have.
func (w *keyWriter) acked() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.keys)
}

// forget goes back to the writes of a snapshot: others are lost as they should
// be, except those that begin now.
func (w *keyWriter) forget(kept map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.keys = time.Now(), maps.Clone(kept)
}

// seen drops most of the keys that were found: what was found once on all
// servers is looked for again only here and there.
func (w *keyWriter) seen(keys map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range keys {
		if !strings.HasSuffix(key, "0") {
			delete(w.keys, key)
		}
	}
}
