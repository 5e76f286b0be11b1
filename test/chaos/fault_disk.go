package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"trivet/internal/fault"
)

var diskFaults = []kind{
	{name: "disk-full", targets: someServer, run: diskFull},
	{name: "disk-slow", targets: someServer, hooks: true, size: uniform(20, 300), run: diskSlow},
	{name: "disk-hung", targets: someServer, hooks: true, run: diskHung},
	{name: "disk-failing", targets: someServer, hooks: true, run: diskFailing},
	{name: "corrupt", targets: someServer, ways: []string{"log damaged", "log truncated", "log gone", "snapshot damaged", "snapshot truncated"}, run: corrupt},
}

// snapshotWithin is how long snapshots may take to come by themselves.
const snapshotWithin = 60 * time.Second

// heard wants a text in what a server has said after an offset of its log.
func (x *execution) heard(s *Server, after int64, what string) error {
	said, err := s.said(after)
	if err != nil {
		return err
	}
	n := strings.Count(said, what)
	if n == 0 {
		return fmt.Errorf("%s did not say %q", s.Name, what)
	}
	x.happened("%s said %q %d times", s.Name, what, n)
	return nil
}

// diskFull fills the disk of a server, and wants the server to have met that.
func diskFull(ctx context.Context, x *execution) error {
	log := x.target.logged()
	if err := fill(x.target.Data); err != nil {
		return err
	}
	left, err := free(x.target.Data)
	if err != nil {
		return errors.Join(err, relieve(x.target.Data))
	}
	x.happened("%d bytes are free on the disk of %s", left, x.target.Name)
	err = x.serve(ctx)
	if err == nil {
		// The log may have had room of its own.
		wctx, cancel := context.WithTimeout(ctx, snapshotWithin)
		err = poll(wctx, "the disk was not felt", func(context.Context) error {
			return x.heard(x.target, log, "no space left on device")
		})
		cancel()
	}
	x.ending = x.target
	return errors.Join(err, relieve(x.target.Data))
}

// startIfEnded starts the server that the fault has made end itself. It is
// asked again and again until the cluster is a whole: a server that gave up on
// its disk just before the fault's end needs a while to end, and then nobody
// else would start it. It is not to end a second time.
func (x *execution) startIfEnded(ctx context.Context) error {
	s := x.ending
	if s == nil || s.Running() {
		return nil
	}
	x.ending = nil
	st, err := s.Wait(ctx)
	if err != nil {
		return err
	}
	x.happened("%s ended itself: %s", s.Name, st)
	return x.revive(s)
}

// disturbed has the target disturb itself during meanwhile, and wants it to
// have said so.
func (x *execution) disturbed(ctx context.Context, f fault.Faults, meanwhile func(context.Context) error) error {
	if err := x.target.forgetSeen(); err != nil {
		return err
	}
	if err := x.target.Disturb(f); err != nil {
		return err
	}
	err := meanwhile(ctx)
	seen, err2 := x.target.Seen()
	x.ending = x.target
	err = errors.Join(err, err2, x.target.Disturb(fault.Faults{}))
	x.happened("%s was disturbed: %+v", x.target.Name, seen)
	if err == nil && seen == (fault.Seen{}) {
		err = fmt.Errorf("%s did not notice the fault", x.target.Name)
	}
	return err
}

// diskSlow adds so many milliseconds to each write of log entries.
func diskSlow(ctx context.Context, x *execution) error {
	return x.disturbed(ctx, fault.Faults{StoreDelay: time.Duration(x.step.Size * float64(time.Millisecond))}, x.serve)
}

func diskHung(ctx context.Context, x *execution) error {
	return x.disturbed(ctx, fault.Faults{StoreHang: true}, x.serve)
}

func diskFailing(ctx context.Context, x *execution) error {
	return x.disturbed(ctx, fault.Faults{StoreError: "the disk is broken (a fault of the chaos run)"}, x.serve)
}

// snapshots are the indexes of a server's snapshots, in their order.
func snapshots(s *Server) ([]uint64, error) {
	paths, err := filepath.Glob(filepath.Join(s.raftDir(), "snapshots", "*-*-*"))
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, p := range paths {
		// term-index-milliseconds
		parts := strings.Split(filepath.Base(p), "-")
		if n, err := strconv.ParseUint(parts[1], 10, 64); err == nil && !strings.HasSuffix(p, ".tmp") {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// corrupt damages a file of a server that is down. Cut off from all others, so
// that nothing of what it does counts, the server must refuse to go on in plain
// words; then it gets its file back.
func corrupt(ctx context.Context, x *execution) error {
	s := x.target
	if err := x.killed(ctx, s); err != nil {
		return err
	}
	path, err := damaged(s, x.step.Way)
	if err != nil {
		return errors.Join(err, x.revive(s))
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := damage(path, whole, x.step.Way, x.rnd); err != nil {
		return err
	}
	out, in := x.c.links(s)
	for _, p := range append(out, in...) {
		if err := x.c.Net.Set(p.From, p.To, cut); err != nil {
			return err
		}
	}
	log := s.logged()
	err = errors.Join(s.Start(), x.serve(ctx))
	if err == nil {
		err = x.refused(ctx, log, path)
	}
	if s.Running() {
		err = errors.Join(err, s.Kill(ctx))
	}
	err = errors.Join(err, os.WriteFile(path, whole, 0o600))
	x.c.Net.Heal()
	return errors.Join(err, x.revive(s))
}

// refused wants the target to have ended with an error and a hint.
func (x *execution) refused(ctx context.Context, log int64, path string) error {
	wctx, cancel := context.WithTimeout(ctx, healWithin)
	defer cancel()
	st, err := x.target.Wait(wctx)
	if err != nil {
		return fmt.Errorf("it runs with a damaged %s: %w", filepath.Base(path), err)
	}
	said, err := x.target.said(log)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	x.happened("%s refused a damaged %s: %s; its last words: %s", x.target.Name, filepath.Base(path), st, lines[len(lines)-1])
	switch {
	case st.Success():
		return fmt.Errorf("it ended with a damaged %s as if all was well", filepath.Base(path))
	case strings.Contains(said, "goroutine "):
		return fmt.Errorf("it crashed on a damaged %s instead of refusing it", filepath.Base(path))
	}
	return nil
}

// damaged is the file that a way of corruption is about.
func damaged(s *Server, way string) (string, error) {
	if strings.HasPrefix(way, "log") {
		return filepath.Join(s.raftDir(), "log.db"), nil
	}
	dirs, err := filepath.Glob(filepath.Join(s.raftDir(), "snapshots", "*-*-*"))
	if err != nil {
		return "", err
	}
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return strings.HasSuffix(d, ".tmp") })
	if len(dirs) == 0 {
		return "", fmt.Errorf("%s has no snapshot to damage yet", s.Name)
	}
	slices.SortFunc(dirs, func(a, b string) int { return modified(a).Compare(modified(b)) })
	return filepath.Join(dirs[len(dirs)-1], "state.bin"), nil
}

func modified(path string) time.Time {
	st, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// damage removes a file, cuts most of it off (the end of a bolt file may be
// free pages, whose loss is none), or overwrites every other page of it.
func damage(path string, whole []byte, way string, rnd *rand.Rand) error {
	const page = 4096
	switch {
	case strings.HasSuffix(way, "gone"):
		return os.Remove(path)
	case strings.HasSuffix(way, "truncated"):
		return os.Truncate(path, int64(min(len(whole)/2, 4*page)))
	}
	broken := slices.Clone(whole)
	// The first two pages of a bolt file are its own copies of each other.
	start := 2 * page
	if len(whole) <= 3*page {
		start = len(whole) / 3
	}
	for at := start; at < len(broken); at += 2 * page {
		for i := at; i < min(at+page, len(broken)); i++ {
			broken[i] = byte(rnd.Uint32())
		}
	}
	return os.WriteFile(path, broken, 0o600)
}
