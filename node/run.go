package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/codes"

	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/node/holder"
	"trivet/node/steal"
	"trivet/node/workload"
)

// pidFile is where the traffic process's id is kept, in the state directory.
const pidFile = "traffic.pid"

// settings is what the holder passes on to the traffic process.
type settings struct {
	Config  Config `json:"config"`
	Version string `json:"version"`
}

// Run is the node: it holds, and keeps a traffic process, until ctx ends. What
// is wrong with the configuration, the certificate or the workload file is
// found before anything is started.
func Run(ctx context.Context, cfg *Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	logger := cfg.Logger
	if logger == nil {
		if logger, _, err = cfg.newLogger("holder"); err != nil {
			return err
		}
	}
	if err := check(ctx, cfg, logger); err != nil {
		return err
	}
	if err := cfg.makeStateDir(); err != nil {
		return err
	}
	lock, err := lockState(cfg.StateDir)
	if err != nil {
		return err
	}
	defer lock.Close()

	canSteal, why, err := probe(cfg.Steal)
	if err != nil {
		return err
	}
	bare := *cfg
	bare.Token = "" // it has done its work
	pass, err := json.Marshal(settings{Config: bare, Version: cfg.Version})
	if err != nil {
		return fmt.Errorf("pass settings on: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	h, err := holder.New(holder.Config{
		Command: cfg.command, BootID: uuid.NewString(), Steal: canSteal, Reason: why, Settings: pass,
		PIDFile: filepath.Join(cfg.StateDir, pidFile), Logger: logger, Registry: registry,
	})
	if err != nil {
		return err
	}
	logger.Info("node starts", "version", cfg.Version, "backend", h.Backend(), "reason", why)
	return hold(ctx, cfg, h, registry, logger)
}

// hold runs the holder with its admin listener and passes SIGHUP on.
func hold(ctx context.Context, cfg *Config, h *holder.Holder, registry *prometheus.Registry, logger *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := make(chan error, 1)
	admin, err := openAdmin(cfg, h, registry)
	if err != nil {
		cancel() // the holder gives back what it has
		return errors.Join(err, h.Run(ctx))
	}
	go func() { held <- h.Run(ctx) }()
	served := make(chan error, 1)
	go func() { served <- admin.serve(logger) }()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-hup:
			logger.Info("reading workloads and certificates again")
			h.Signal(syscall.SIGHUP)
		case err := <-served:
			// Only a broken listener gets here; the node is blind without it.
			cancel()
			return errors.Join(err, <-held)
		case err := <-held:
			return errors.Join(err, admin.close(), <-served)
		}
	}
}

// startRenewal bounds the attempt to renew a certificate that has ended before
// anything is started.
const startRenewal = 30 * time.Second

// check finds what the traffic process would only find again and again. A
// certificate that ended while the machine was off is renewed here.
func check(ctx context.Context, cfg *Config, logger *slog.Logger) error {
	certs, err := pki.OpenSource(cfg.Bundle)
	if err != nil {
		return err
	}
	if w := certs.Bundle().Warning(); w != "" {
		logger.Warn("a private key is not private", "warning", w)
	}
	rctx, cancel := context.WithTimeout(ctx, startRenewal)
	defer cancel()
	if err := enroll.Refresh(rctx, certs, cfg.Servers); err != nil {
		return err
	}
	bundle := certs.Bundle()
	if err := bundle.ValidAt(time.Now()); err != nil {
		return err
	}
	if bundle.ID.Role != pki.RoleNode || bundle.ID.Name != cfg.Name {
		return errs.New(codes.FailedPrecondition, "WRONG_CERTIFICATE",
			"the certificate in %s is %s, not that of node %q", cfg.Bundle, bundle.ID, cfg.Name).
			WithHint("set name to the name in the certificate, or bundle to the directory of this node's own")
	}
	_, err = workload.Open(cfg.WorkloadsFile, cfg.Name, logger)
	return err
}

// probe tells whether connections are to be stolen, and if not, why.
func probe(mode string) (can bool, why string, err error) {
	if mode == steal.NameProxy {
		return false, "the configuration asks for proxy", nil
	}
	err = steal.Probe()
	switch {
	case err == nil:
		return true, "", nil
	case errors.Is(err, errors.ErrUnsupported) && mode == StealAuto:
		return false, err.Error(), nil
	case errors.Is(err, errors.ErrUnsupported):
		return false, "", errs.New(codes.FailedPrecondition, "STEAL_UNSUPPORTED", "steal by sk_lookup: %w", err).
			WithHint("run as root on Linux 5.9 or newer, or set steal: auto and give the ports listen and app addresses")
	}
	return false, "", err
}
