package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"trivet/cmd/trivet/devenv"
	"trivet/node/steal"
)

const (
	interceptName = "demo"
	stepTimeout   = 45 * time.Second
	sample        = 20
	failOpenLimit = time.Second
)

// Options of a demo.
type Options struct {
	// Dir holds the environment; empty means a temporary directory that is
	// removed if everything held.
	Dir string
	// Exe is the trivet binary.
	Exe string
	// Out is told of each step as it is shown.
	Out io.Writer
}

// demo is a run of it.
type demo struct {
	opts   Options
	env    *devenv.Env
	report Report

	local     string
	intercept *intercept
	ops       *devenv.Operators
}

var errSkipped = errors.New("skipped")

// Run shows everything. The error is only for what kept it from running;
// whether everything held is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	temporary := o.Dir == ""
	if temporary {
		dir, err := os.MkdirTemp("", "trivet-demo-")
		if err != nil {
			return nil, err
		}
		o.Dir = dir
	}
	d := &demo{opts: o}
	d.report.OK = true
	d.run(ctx)
	if err := d.close(); err != nil {
		d.step("everything ends", func() (string, error) { return "", err })
	}
	if temporary && d.report.OK {
		return &d.report, os.RemoveAll(o.Dir)
	}
	fmt.Fprintf(o.Out, "logs are in %s\n", o.Dir)
	return &d.report, nil
}

func (d *demo) run(ctx context.Context) {
	addr, stopLocal, err := serveLocal()
	if err != nil {
		d.step("a local process listens", func() (string, error) { return "", err })
		return
	}
	defer stopLocal()
	d.local = addr
	steps := []struct {
		name string
		f    func(context.Context) (string, error)
	}{
		{"three servers, a node, a sample", d.start},
		{"visitors reach the app", d.appAnswers},
		{"an intercept becomes ACTIVE", d.create},
		{"visitors reach the local process", d.localAnswers},
		{"the leader is killed (SIGKILL)", d.killLeader},
		{"session and intercept are still there", d.stillThere},
		{"the killed server comes back", d.comeBack},
		{"traffic process stopped (SIGSTOP)", func(ctx context.Context) (string, error) { return d.stopTraffic(ctx, syscall.SIGSTOP) }},
		{"traffic process killed (SIGKILL)", func(ctx context.Context) (string, error) { return d.stopTraffic(ctx, syscall.SIGKILL) }},
		{"the intercept is removed (Ctrl-C)", d.remove},
		{"visitors reach the app again", d.appAnswers},
	}
	for _, s := range steps {
		sctx, cancel := context.WithTimeout(ctx, stepTimeout)
		ok := d.step(s.name, func() (string, error) { return s.f(sctx) })
		cancel()
		if !ok {
			return
		}
	}
}

// step runs one step, records it and says whether to go on.
func (d *demo) step(name string, f func() (string, error)) bool {
	fmt.Fprintf(d.opts.Out, "- %s ... ", name)
	start := time.Now()
	detail, err := f()
	s := Step{Name: name, OK: err == nil, Detail: detail, Ms: millis(time.Since(start))}
	if errors.Is(err, errSkipped) {
		s.Skipped, s.OK = true, true
	} else if err != nil {
		s.Detail = err.Error()
		d.report.OK = false
	}
	d.report.Steps = append(d.report.Steps, s)
	fmt.Fprintf(d.opts.Out, "%s (%s): %s\n", s.verdict(), ms(s.Ms), s.Detail)
	return s.OK
}

func (d *demo) close() error {
	var all []error
	if d.intercept != nil {
		all = append(all, d.intercept.interrupt())
	}
	if d.ops != nil {
		d.ops.Close()
	}
	if d.env != nil {
		all = append(all, d.env.Close())
	}
	return errors.Join(all...)
}

func (d *demo) start(ctx context.Context) (string, error) {
	env, err := devenv.Start(ctx, devenv.Options{Dir: d.opts.Dir, Servers: 3, Nodes: 1, Exe: d.opts.Exe})
	if err != nil {
		return "", err
	}
	d.env = env
	d.report.StealBackend = env.StealBackend
	if d.ops, err = env.Operators(ctx); err != nil {
		return "", err
	}
	detail := fmt.Sprintf("mutual TLS everywhere, steal backend %s", env.StealBackend)
	if env.StealReason != "" {
		detail += " (" + env.StealReason + ")"
	}
	return detail, nil
}

// answeredBy sends a few requests and wants all of them answered by one side.
func (d *demo) answeredBy(ctx context.Context, want string) (string, error) {
	hc := visitor()
	var sum time.Duration
	for i := range sample {
		r := visit(ctx, hc, d.env.URLs[i%len(d.env.URLs)])
		d.report.RequestsTotal++
		if r.err != nil || r.by != want {
			d.report.RequestsFailed++
			return "", fmt.Errorf("request %d of %d was answered by %q, want %q (error: %v)", i+1, sample, r.by, want, r.err)
		}
		sum += r.end.Sub(r.start)
	}
	who := map[string]string{byApp: "the app", byLocal: "the local process"}[want]
	return fmt.Sprintf("%d of %d new connections answered by %s, mean %s", sample, sample, who, ms(millis(sum/sample))), nil
}

func (d *demo) appAnswers(ctx context.Context) (string, error) { return d.answeredBy(ctx, byApp) }

func (d *demo) localAnswers(ctx context.Context) (string, error) {
	if err := d.until(ctx, byLocal); err != nil {
		return "", err
	}
	return d.answeredBy(ctx, byLocal)
}

// until sends requests until one is answered by want.
func (d *demo) until(ctx context.Context, want string) error {
	hc := visitor()
	for {
		r := visit(ctx, hc, d.env.URLs[0])
		if r.err == nil && r.by == want {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no request was answered by %q: %w", want, ctx.Err())
		}
	}
}

func (d *demo) create(ctx context.Context) (string, error) {
	leader, err := d.ops.Leader(ctx)
	if err != nil {
		return "", err
	}
	i, err := startIntercept(d.env, d.opts.Exe, d.env.Addresses[leader], d.local)
	if err != nil {
		return "", err
	}
	d.intercept = i
	if err := i.await(ctx, "active", 0); err != nil {
		return "", err
	}
	return fmt.Sprintf("through %s, which leads", d.env.Servers[leader].Name), nil
}

func (d *demo) remove(context.Context) (string, error) {
	i := d.intercept
	d.intercept = nil
	if err := i.interrupt(); err != nil {
		return "", err
	}
	return "the command ended by itself", nil
}

// stopTraffic stops or kills the node's traffic process and wants new
// connections answered by the app within a second, and by the local process
// again once the holder has replaced it.
func (d *demo) stopTraffic(ctx context.Context, sig syscall.Signal) (string, error) {
	if d.env.StealBackend != steal.NameSkLookup {
		return "without " + steal.NameSkLookup + " the node is in every connection's way: " + d.env.StealReason, errSkipped
	}
	pid, err := d.env.TrafficPID()
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return "", fmt.Errorf("signal the traffic process %d: %w", pid, err)
	}
	start := time.Now()
	took, err := d.firstFromApp(ctx, start)
	if err != nil {
		return "", err
	}
	if took > failOpenLimit {
		return "", fmt.Errorf("the app answered a new connection only %s after the traffic process was gone, want at most %s", took, failOpenLimit)
	}
	if err := d.until(ctx, byLocal); err != nil {
		return "", err
	}
	return fmt.Sprintf("a connection started %s later was answered by the app; the intercept was back after %s",
		ms(millis(took)), ms(millis(time.Since(start)))), nil
}

// firstFromApp opens connections in parallel, every 20 ms, and returns when the
// first one that the app answered was started.
func (d *demo) firstFromApp(ctx context.Context, start time.Time) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan request, 64)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	inFlight := 0
	defer func() {
		cancel()
		for ; inFlight > 0; inFlight-- {
			<-answers
		}
	}()
	hc := visitor()
	for {
		select {
		case <-tick.C:
			if inFlight < cap(answers) {
				inFlight++
				go func() { answers <- visit(ctx, hc, d.env.URLs[0]) }()
			}
		case r := <-answers:
			inFlight--
			if r.err == nil && r.by == byApp {
				return r.start.Sub(start), nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("the app answered no new connection: %w", ctx.Err())
		}
	}
}
