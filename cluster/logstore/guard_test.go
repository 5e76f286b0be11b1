package logstore

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"trivet/internal/errs"
)

// sick is a backend in memory whose writes can hang or fail.
type sick struct {
	*raft.InmemStore
	mu   sync.Mutex
	hang chan struct{}
	err  error
	// panics: the next call does.
	panics bool
}

func (b *sick) disturb() error {
	b.mu.Lock()
	hang, err, panics := b.hang, b.err, b.panics
	b.mu.Unlock()
	if panics {
		panic("page 7: assertion failed")
	}
	if hang != nil {
		<-hang
	}
	return err
}

func (b *sick) set(hang chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang, b.err = hang, err
}

func (b *sick) StoreLogs(logs []*raft.Log) error {
	if err := b.disturb(); err != nil {
		return err
	}
	return b.InmemStore.StoreLogs(logs)
}

func (b *sick) DeleteRange(first, last uint64) error {
	if err := b.disturb(); err != nil {
		return err
	}
	return b.InmemStore.DeleteRange(first, last)
}

func (b *sick) Set(k, v []byte) error {
	if err := b.disturb(); err != nil {
		return err
	}
	return b.InmemStore.Set(k, v)
}

func (b *sick) Get(k []byte) ([]byte, error) {
	v, err := b.InmemStore.Get(k)
	if err != nil {
		return nil, nil // not found
	}
	return v, nil
}

func (b *sick) GetLog(i uint64, l *raft.Log) error {
	b.mu.Lock()
	panics := b.panics
	b.mu.Unlock()
	if panics {
		panic("page 7: assertion failed")
	}
	return b.InmemStore.GetLog(i, l)
}

func (b *sick) Close() error         { return nil }
func (b *sick) file() string         { return "/data/raft/log.db" }
func (b *sick) size() (int64, error) { return 0, nil }

func sickStore(t *testing.T) (*Store, *sick) {
	t.Helper()
	b := &sick{InmemStore: raft.NewInmemStore()}
	s, err := adopted(Config{Dir: t.TempDir()}.withDefaults(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, b
}

// serve puts s into the mode in which Raft runs.
func serve(t *testing.T, s *Store) <-chan error {
	t.Helper()
	fatal := make(chan error, 2)
	if err := s.Serve(func(err error) { fatal <- err }, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	return fatal
}

// onItsOwn runs f as a goroutine of Raft's and says whether it came to its end.
func onItsOwn(f func() error) (err error, ended bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		ended = true
	}()
	<-done
	return err, ended
}

func TestWriteThatHangsIsFatalInTime(t *testing.T) {
	for name, write := range map[string]func(*Store) error{
		"entries": func(s *Store) error { return s.StoreLogs(entries(1, 2)) },
		"term":    func(s *Store) error { return s.SetUint64([]byte(keyTerm), 3) },
		"vote":    func(s *Store) error { return s.Set([]byte("LastVoteCand"), []byte("x")) },
		"removal": func(s *Store) error { return s.DeleteRange(1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, b := sickStore(t)
				fatal := serve(t, s)
				hang := make(chan struct{})
				b.set(hang, nil)
				begin := time.Now()
				returned := make(chan bool, 1)
				go func() {
					defer close(returned)
					_ = write(s)
					returned <- true
				}()
				err := <-fatal
				if took := time.Since(begin); took != DefaultDeadline {
					t.Errorf("told after %s", took)
				}
				if e := errs.From(err); e.Reason != ReasonDiskHung || !strings.Contains(e.Hint, "the disk under "+s.cfg.Dir+" does not answer") {
					t.Errorf("told %v, hint %q", err, e.Hint)
				}
				if ok, why := s.Healthy(); ok || !strings.Contains(why, "has not ended") {
					t.Errorf("healthy %v, %q", ok, why)
				}
				// The late write lands. Raft must not hear of it.
				close(hang)
				if <-returned {
					t.Error("the late write returned to Raft")
				}
				if len(fatal) > 0 {
					t.Error("told twice")
				}
			})
		})
	}
}

func TestSlowWriteIsNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := sickStore(t)
		fatal := serve(t, s)
		for i := range uint64(20) {
			hang := make(chan struct{})
			b.set(hang, nil)
			time.AfterFunc(DefaultDeadline-time.Millisecond, func() { close(hang) })
			if err := s.StoreLogs(entries(i+1, i+1)); err != nil {
				t.Fatal(err)
			}
		}
		if len(fatal) > 0 {
			t.Error(<-fatal)
		}
		p := s.Problems()
		if len(p) != 1 || p[0].Reason != ReasonDiskSlow || p[0].Hint == "" {
			t.Errorf("problems %+v", p)
		}
		// A disk that is not written to any more is not called slow for ever.
		time.Sleep(staleMean)
		if p := s.Problems(); len(p) != 0 {
			t.Errorf("problems %+v", p)
		}
	})
}

// TestPauseOfTheProcessIsNoDeadline: a process that was stopped finds all its
// timers late at once.
func TestPauseOfTheProcessIsNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := sickStore(t)
		p := s.begin()
		// As if nothing ran for an hour: one late tick instead of ten.
		p.mu.Lock()
		p.timer.Reset(time.Hour)
		p.mu.Unlock()
		time.Sleep(time.Hour + time.Millisecond)
		if err := s.failed(); err != nil {
			t.Errorf("the pause was counted: %v", err)
		}
		s.end(p)
		time.Sleep(time.Hour)
		if err := s.failed(); err != nil {
			t.Errorf("a write that ended was counted: %v", err)
		}
	})
}

func TestFullDiskIsNotFatal(t *testing.T) {
	s, b := sickStore(t)
	fatal := serve(t, s)
	b.set(nil, &errFile{syscall.ENOSPC})
	err, ended := onItsOwn(func() error { return s.StoreLogs(entries(1, 1)) })
	if !ended || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("ended %v, %v", ended, err)
	}
	if p := s.Problems(); len(p) == 0 || p[0].Reason != ReasonDiskFull || !strings.Contains(p[0].Hint, "make room") {
		t.Errorf("problems %+v", p)
	}
	var l raft.Log
	if err := s.GetLog(1, &l); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("an entry that was not stored: %v", err)
	}
	b.set(nil, nil)
	if err, _ := onItsOwn(func() error { return s.StoreLogs(entries(1, 1)) }); err != nil {
		t.Fatal(err)
	}
	if ok, why := s.Healthy(); !ok {
		t.Errorf("after a write that succeeded: %s", why)
	}
	if len(fatal) > 0 {
		t.Error(<-fatal)
	}
}

// errFile is an error as package os makes them.
type errFile struct{ errno syscall.Errno }

func (e *errFile) Error() string { return "write log.db: " + e.errno.Error() }
func (e *errFile) Unwrap() error { return e.errno }

func TestWritesThatRaftMustNotSurvive(t *testing.T) {
	for name, x := range map[string]struct {
		err     error
		prepare func(*Store) error
		do      func(*Store) error
		hint    string
	}{
		"the disk fails": {
			err: &errFile{syscall.EIO}, do: func(s *Store) error { return s.StoreLogs(entries(1, 1)) }, hint: "kernel's log",
		},
		"no room for the term": {
			err: &errFile{syscall.ENOSPC}, do: func(s *Store) error { return s.SetUint64([]byte(keyTerm), 3) }, hint: "make room",
		},
		// Raft would go on believing in the end of the log that is gone.
		"no room after the end was removed": {
			err:     &errFile{syscall.ENOSPC},
			prepare: func(s *Store) error { return errors.Join(s.StoreLogs(entries(1, 5)), s.DeleteRange(4, 5)) },
			do:      func(s *Store) error { return s.StoreLogs(entries(4, 4)) }, hint: "make room",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, b := sickStore(t)
			fatal := serve(t, s)
			if x.prepare != nil {
				if err := x.prepare(s); err != nil {
					t.Fatal(err)
				}
			}
			b.set(nil, x.err)
			if err, ended := onItsOwn(func() error { return x.do(s) }); ended {
				t.Fatalf("Raft got %v", err)
			}
			e := errs.From(<-fatal)
			if e.Reason != ReasonWriteFailed || !errors.Is(e, x.err) || !strings.Contains(e.Hint, x.hint) {
				t.Errorf("%v, hint %q", e, e.Hint)
			}
			b.set(nil, nil)
			if _, ended := onItsOwn(func() error { return s.StoreLogs(entries(1, 1)) }); ended {
				t.Error("something was written after that")
			}
		})
	}
}

func TestVoteThatFindsNoRoomIsNotGiven(t *testing.T) {
	s, b := sickStore(t)
	fatal := serve(t, s)
	b.set(nil, &errFile{syscall.ENOSPC})
	if err, ended := onItsOwn(func() error { return s.Set([]byte("LastVoteCand"), []byte("x")) }); !ended || err == nil || len(fatal) > 0 {
		t.Errorf("ended %v, %v", ended, err)
	}
}

func TestLibraryThatPanicsIsDamage(t *testing.T) {
	for name, do := range map[string]func(*Store) error{
		"write": func(s *Store) error { return s.StoreLogs(entries(1, 1)) },
		"read":  func(s *Store) error { return s.GetLog(1, new(raft.Log)) },
	} {
		t.Run(name, func(t *testing.T) {
			s, b := sickStore(t)
			fatal := serve(t, s)
			b.panics = true
			if err, ended := onItsOwn(func() error { return do(s) }); ended {
				t.Fatalf("Raft got %v", err)
			}
			if err := <-fatal; !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "page 7") {
				t.Error(err)
			}
		})
	}
}

func TestServeReturnsWhatComesUpInTheStart(t *testing.T) {
	s, b := sickStore(t)
	b.panics = true
	err := s.Serve(func(err error) { t.Errorf("told %v", err) }, func() error { return s.GetLog(1, new(raft.Log)) })
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("serve: %v", err)
	}
	s, _ = sickStore(t)
	err = s.Serve(func(err error) { t.Errorf("told %v", err) }, func() error { panic(raft.ErrLogNotFound) })
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "log not found") {
		t.Errorf("serve: %v", err)
	}
}

// TestRaftEndsWithItsDisk runs Raft itself over a store that fails.
func TestRaftEndsWithItsDisk(t *testing.T) {
	for name, break_ := range map[string]func(*sick){
		"hangs":  func(b *sick) { b.set(make(chan struct{}), nil) },
		"fails":  func(b *sick) { b.set(nil, &errFile{syscall.EIO}) },
		"panics": func(b *sick) { b.mu.Lock(); b.panics = true; b.mu.Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			b := &sick{InmemStore: raft.NewInmemStore()}
			s, err := adopted(Config{Dir: t.TempDir(), Deadline: 200 * time.Millisecond}.withDefaults(), b)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			fatal := make(chan error, 1)
			var r *raft.Raft
			addr, trans := raft.NewInmemTransport("")
			conf := raft.DefaultConfig()
			conf.LocalID, conf.LogOutput = "one", t.Output()
			conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
			err = s.Serve(func(err error) { fatal <- err }, func() (err error) {
				r, err = raft.NewRaft(conf, nothing{}, s, s, raft.NewInmemSnapshotStore(), trans)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: "one", Address: addr}}}).Error(); err != nil {
				t.Fatal(err)
			}
			<-r.LeaderCh()
			if err := r.Apply([]byte("x"), time.Second).Error(); err != nil {
				t.Fatal(err)
			}
			break_(b)
			applied := r.Apply([]byte("y"), time.Second)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			select {
			case <-fatal:
			case <-ctx.Done():
				t.Fatal("nobody was told")
			}
			// The disk comes back, too late.
			b.mu.Lock()
			if b.hang != nil {
				close(b.hang)
			}
			b.mu.Unlock()
			if err := applied.Error(); err == nil {
				t.Error("the write was acknowledged")
			}
			if err := r.Shutdown().Error(); err != nil {
				t.Error(err)
			}
		})
	}
}

// nothing is a state machine.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                 { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("no snapshots") }
func (nothing) Restore(r io.ReadCloser) error       { return r.Close() }
