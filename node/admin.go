package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"trivet/node/holder"
)

const (
	// adminFile is where the address of the admin listener is kept, in the
	// state directory.
	adminFile = "admin.addr"
	// metricsTimeout is how long the traffic process may take to hand in its
	// metrics; one that hangs must not take the holder's along.
	metricsTimeout = time.Second
	adminTimeout   = 5 * time.Second
)

// admin is the listener for health and metrics. The zero value serves nothing.
type admin struct {
	server *http.Server
	ln     net.Listener
	file   string
	done   chan struct{}
}

func openAdmin(cfg *Config, h *holder.Holder, registry *prometheus.Registry) (*admin, error) {
	a := &admin{done: make(chan struct{})}
	if cfg.Admin == "" {
		return a, nil
	}
	ln, err := net.Listen("tcp", cfg.Admin)
	if err != nil {
		return nil, fmt.Errorf("open admin listener: %w", err)
	}
	a.ln, a.file = ln, filepath.Join(cfg.StateDir, adminFile)
	if err := os.WriteFile(a.file, []byte(ln.Addr().String()+"\n"), 0o644); err != nil {
		ln.Close()
		return nil, fmt.Errorf("keep address of admin listener: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { serveMetrics(w, r, h, registry) })
	a.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: adminTimeout, ReadTimeout: adminTimeout,
		WriteTimeout: adminTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	return a, nil
}

// serve returns nil after close, or what broke the listener.
func (a *admin) serve(logger *slog.Logger) error {
	if a.server == nil {
		<-a.done
		return nil
	}
	logger.Info("admin listener is open", "address", a.ln.Addr().String())
	if err := a.server.Serve(a.ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin listener: %w", err)
	}
	return nil
}

func (a *admin) close() error {
	close(a.done)
	if a.server == nil {
		return nil
	}
	return errors.Join(a.server.Close(), os.Remove(a.file))
}

// serveMetrics writes the metrics of both processes. Their names differ, so
// one text after the other is a valid whole.
func serveMetrics(w http.ResponseWriter, r *http.Request, h *holder.Holder, registry *prometheus.Registry) {
	var out bytes.Buffer
	if err := writeMetrics(&out, registry); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), metricsTimeout)
	defer cancel()
	// Without them the holder's are still true, and say what is wrong.
	if data, err := h.Metrics(ctx); err == nil {
		out.Write(data)
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_, _ = out.WriteTo(w) // who asked is gone
}
