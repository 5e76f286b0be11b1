package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/sys/unix"

	"trivet/internal/enroll"
	"trivet/internal/loglevel"
	"trivet/internal/pki"
	"trivet/node/handoff"
	"trivet/node/link"
	"trivet/node/steal"
	"trivet/node/traffic"
	"trivet/node/workload"
	nodev1 "trivet/proto/trivet/node/v1"
)

// socketFD is the descriptor that the traffic process inherits.
const socketFD = 3

// renewEvery is how often the certificate is read again: others than this
// process may renew it too, long before it expires.
const renewEvery = time.Minute

// InheritedSocket returns the socket to the holder of a traffic process, for
// RunTraffic. A process that nobody handed one gets an error.
func InheritedSocket() (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(socketFD, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("this command is for `trivet node run` to start: there is no socket to a holder")
	}
	unix.CloseOnExec(socketFD)
	return os.NewFile(socketFD, "holder socket"), nil
}

// RunTraffic is the traffic process. It owns the socket to the holder, and
// carries traffic until ctx ends or the holder is gone; either way it first
// gives the pods back to their apps.
func RunTraffic(ctx context.Context, socket *os.File) error {
	registry := prometheus.NewRegistry()
	own := prometheus.WrapRegistererWithPrefix("trivet_node_traffic_", registry)
	own.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	client, welcome, beatFile, err := handoff.Connect(socket, func(w io.Writer) error { return writeMetrics(w, registry) })
	if err != nil {
		return err
	}
	beat := client.Beat
	if beatFile != nil {
		shared, err := steal.AdoptBeat(beatFile)
		if err != nil {
			return errors.Join(err, client.Close())
		}
		defer shared.Close()
		beat = shared.Write
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer client.Close()
	var set settings
	if err := json.Unmarshal(welcome.Settings, &set); err != nil {
		return fmt.Errorf("read the holder's settings: %w", err)
	}
	logger, level, err := set.Config.newLogger("traffic")
	if err != nil {
		return err
	}
	wg.Go(func() {
		if err := client.Run(); err != nil {
			logger.Error("socket to the holder broke", "err", err)
		}
		cancel() // without the holder there is nothing to carry for long
	})
	return carry(ctx, &wg, set, welcome, client, beat, registry, logger, level)
}

// carry makes what the traffic process works with, and runs it.
func carry(
	ctx context.Context, wg *sync.WaitGroup, set settings, welcome handoff.Welcome, client *handoff.Client,
	beat func() error, registry *prometheus.Registry, logger *slog.Logger, level *loglevel.Var,
) error {
	cfg := set.Config
	certs, err := pki.OpenSource(cfg.Bundle)
	if err != nil {
		return err
	}
	source, err := workload.Open(cfg.WorkloadsFile, cfg.Name, logger)
	if err != nil {
		return err
	}
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "trivet_node_workload_files_refused_total",
		Help: "Times that a changed workload file was wrong and the old content stayed.",
	}, func() float64 { return float64(source.Refused()) }))
	metrics := link.NewMetrics(registry)
	ledger, err := link.OpenLedger(cfg.StateDir, metrics)
	if err != nil {
		return err
	}
	conf := pki.ClientConfig(certs, pki.Policy{ALPN: []string{"h2"}, Roles: []pki.Role{pki.RoleServer}})
	pool, err := link.NewPool(link.PoolConfig{
		Servers: cfg.Servers, Logger: logger, Metrics: metrics,
		Dial: link.DialTLS(conf, func(err error) error { return pki.ExplainHandshake(err, certs) }),
	})
	if err != nil {
		return err
	}
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	wg.Go(func() { reread(inner, source, certs, logger) })
	wg.Go(func() {
		enroll.Keep(inner, certs, enroll.Asker(certs, func() []string { return cfg.Servers }), logger)
	})

	attacher := traffic.NewAttacher(client)
	return traffic.Run(ctx, traffic.Config{
		Hello: &nodev1.NodeHello{
			Name: cfg.Name, BootId: welcome.BootID, Version: set.Version,
			StealBackend: welcome.Backend, StealReason: welcome.Reason, Kernel: kernel(),
		},
		Source: source, Pool: pool, Ledger: ledger, Held: welcome.Held,
		Attach: attacher.Attach, Detach: attacher.Detach,
		Beat:   func() error { return errors.Join(beat(), attacher.Beat()) },
		Status: client.Status,
		Logger: logger, Level: level, Registry: registry, LinkMetrics: metrics,
	})
}

// reread reads workloads and certificate again when told to, and the
// certificate now and then.
func reread(ctx context.Context, source *workload.File, certs *pki.Source, logger *slog.Logger) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			source.Reload()
		case <-tick.C:
		}
		if err := certs.Reload(); err != nil {
			logger.Warn("certificate was not read again, the old one stays", "err", err)
		}
	}
}

// writeMetrics writes what the registry has, in Prometheus's text form.
func writeMetrics(w io.Writer, registry *prometheus.Registry) error {
	families, err := registry.Gather()
	if err != nil {
		return fmt.Errorf("collect metrics: %w", err)
	}
	enc := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("write metrics: %w", err)
		}
	}
	return nil
}

// kernel returns the release of the running kernel.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
