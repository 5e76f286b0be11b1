package traffic

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"trivet/internal/loglevel"
	"trivet/internal/rt"
	"trivet/node/agent"
	"trivet/node/handoff"
	"trivet/node/heart"
	"trivet/node/link"
	"trivet/node/steal"
	"trivet/node/workload"
	nodev1 "trivet/proto/trivet/node/v1"
)

const (
	// DefaultDrain is how long open connections may take to end.
	DefaultDrain = 10 * time.Second
	// retireTimeout bounds the end of all agents, stopTimeout that of the rest.
	retireTimeout = 5 * time.Second
	stopTimeout   = 5 * time.Second
)

// Config describes a traffic process.
type Config struct {
	// Hello is what the node says of itself.
	Hello *nodev1.NodeHello
	// Source tells what runs here.
	Source *workload.File
	Pool   *link.Pool
	Ledger *link.Ledger
	// Attach and Detach are the holder's part.
	Attach func(context.Context, *workload.Pod) (steal.Backend, error)
	Detach func(ctx context.Context, uid string) error
	// Held are pods that the holder has attachments to.
	Held []string
	// Beat writes the heartbeat.
	Beat func() error
	// Status tells the holder how things are.
	Status func(handoff.Status) error
	// Drain is how long open connections may take to end; zero means
	// DefaultDrain.
	Drain time.Duration

	Logger *slog.Logger
	// Level is that of the Logger; the manager changes it. Nil: it stays.
	Level    *loglevel.Var
	Registry prometheus.Registerer
	// LinkMetrics are those that Pool and Ledger were made with.
	LinkMetrics *link.Metrics
}

// process is one call of Run.
type process struct {
	cfg     Config
	system  *rt.System
	tunnels *agent.Tunnels
	roster  rt.Ref[rosterMsg]
	status  statusBoard
}

// Run carries traffic until ctx ends, and some time longer for what is open.
// The error says what did not end in order, or why it could not begin.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Drain == 0 {
		cfg.Drain = DefaultDrain
	}
	p := &process{cfg: cfg, status: statusBoard{tell: cfg.Status, logger: cfg.Logger}}
	failed := make(chan error, 1)
	p.system = rt.NewSystem(rt.Options{
		Logger: cfg.Logger,
		OnEscalate: func(child string, reason error) {
			select {
			case failed <- reason:
			default:
			}
		},
	})
	cfg.Registry.MustRegister(actorCollector{p.system})

	pulse := heart.New(cfg.Logger, cfg.Registry)
	beating, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { pulse.Run(beating, cfg.Beat) })
	defer wg.Wait()
	defer stopBeating()

	err := p.spawn(pulse)
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
			cfg.Logger.Error("the tree of actors has failed", "err", err)
		}
	}
	return errors.Join(err, p.stop(context.WithoutCancel(ctx)))
}

// spawn makes the tree of actors, owners of others first.
func (p *process) spawn(pulse *heart.Heart) error {
	metrics := agent.NewMetrics(p.cfg.Registry)
	var err error
	p.tunnels, err = agent.SpawnTunnels(p.system, agent.TunnelsConfig{
		Pool: p.cfg.Pool, Metrics: metrics, Logger: p.cfg.Logger,
	})
	if err != nil {
		return err
	}
	agents, err := rt.SpawnGroup(p.system, "agents", rt.GroupPolicy{})
	if err != nil {
		return err
	}
	set, changed := p.cfg.Source.Get()
	p.roster, err = rt.Spawn(p.system, rt.Spec[rosterMsg]{
		Name: "roster", Kind: "roster",
		// Its agents do not restart with it, so it must not.
		Restart: rt.RestartPolicy{Intensity: rt.NoRestart, OnExceed: rt.Escalate},
		New: func() rt.Behavior[rosterMsg] {
			return &roster{cfg: rosterConfig{
				parent: agents,
				agent: func(pod *workload.Pod) agent.Config {
					return agent.Config{
						Pod: pod, Node: p.cfg.Hello.GetName(), Version: p.cfg.Hello.GetVersion(), Pool: p.cfg.Pool,
						Attach: p.cfg.Attach, Heart: pulse, Tunnels: p.tunnels, Logger: p.cfg.Logger, Metrics: metrics,
					}
				},
				inFront: p.inFront,
				detach:  p.cfg.Detach, held: p.cfg.Held, count: p.status.agents,
				first: newOrders{p.cfg.Ledger.Last()}, set: set, logger: p.cfg.Logger,
			}}
		},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		spawnLoops(p.system, "workloads", p.cfg.Source.Run, func(ctx context.Context) { p.followSet(ctx, changed) }),
		spawnLoops(p.system, "link", p.cfg.Pool.Run, p.followOrders),
	)
}

// followSet tells the roster what runs here.
func (p *process) followSet(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		var set *workload.Set
		set, changed = p.cfg.Source.Get()
		if p.roster.Push(ctx, newSet{set}) != nil {
			return
		}
	}
}

// followOrders tells the roster what the manager wishes.
func (p *process) followOrders(ctx context.Context) {
	p.useLevel(p.cfg.Ledger.Last().GetLogLevel())
	control := &link.Control{
		Pool: p.cfg.Pool, Ledger: p.cfg.Ledger, Source: p.cfg.Source, Hello: p.cfg.Hello,
		Logger: p.cfg.Logger, Metrics: p.cfg.LinkMetrics, Connected: p.status.connected,
		Orders: func(o *nodev1.NodeOrders) {
			p.useLevel(o.GetLogLevel())
			// It fails only when everything ends.
			_ = p.roster.Push(ctx, newOrders{o})
		},
	}
	control.Run(ctx)
}

// useLevel logs as much as the manager wishes; nil: as configured.
func (p *process) useLevel(wish *nodev1.LogLevel) {
	if p.cfg.Level == nil {
		return
	}
	var during time.Duration
	if until := wish.GetUntil(); until != 0 {
		if during = time.Until(time.Unix(0, until)); during <= 0 {
			wish = nil
		}
	}
	if wish == nil {
		p.cfg.Level.Reset()
		return
	}
	_, level, err := loglevel.Parse(wish.GetLevel())
	if err != nil {
		p.cfg.Logger.Warn("the level that the manager wishes is not known here", "level", wish.GetLevel())
		return
	}
	p.cfg.Level.Use(level, during)
}

// stop ends everything in order: first nothing more is stolen, then what is
// open may end, then the rest goes.
func (p *process) stop(ctx context.Context) error {
	var problems []error
	bound := func(d time.Duration, what string, f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		if err := f(ctx); err != nil && !errors.Is(err, rt.ErrStopped) {
			p.cfg.Logger.Warn("traffic process does not end in order", "step", what, "err", err)
			problems = append(problems, err)
		}
	}
	bound(retireTimeout, "retire agents", func(ctx context.Context) error {
		_, err := rt.Ask(ctx, p.roster, func(r rt.Reply[struct{}]) rosterMsg { return dismiss{r} })
		return err
	})
	if p.tunnels != nil {
		bound(p.cfg.Drain, "drain connections", func(ctx context.Context) error {
			if err := p.tunnels.Drain(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			return nil // what is left is reset next
		})
		bound(stopTimeout, "reset connections", p.tunnels.Stop)
	}
	bound(stopTimeout, "stop actors", p.system.Shutdown)
	p.cfg.Pool.Close()
	return errors.Join(problems...)
}

// statusBoard collects the status and tells of each change.
type statusBoard struct {
	tell   func(handoff.Status) error
	logger *slog.Logger

	mu  sync.Mutex
	now handoff.Status // guarded by mu
}

func (b *statusBoard) connected(is bool) { b.update(func(s *handoff.Status) { s.Connected = is }) }

func (b *statusBoard) agents(n int) { b.update(func(s *handoff.Status) { s.Agents = n }) }

func (b *statusBoard) update(change func(*handoff.Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.now
	change(&b.now)
	if b.now == before {
		return
	}
	if err := b.tell(b.now); err != nil {
		b.logger.Warn("holder was not told the status", "err", err)
	}
}

// inFront: a proxy stands where connections cannot be stolen.
func (p *process) inFront(pod *workload.Pod) bool {
	return len(frontsOf(pod)) > 0 && (p.cfg.Hello.GetStealBackend() == steal.NameProxy || !pod.Net.Known())
}
