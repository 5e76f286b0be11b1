package devenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"trivet/internal/netns"
)

const (
	sampleHeaderTimeout = 10 * time.Second
	sampleShutdown      = 5 * time.Second
	sampleBody          = 1 << 30
)

// SampleAnswer is what the sample's answers begin with.
const SampleAnswer = "sample app"

// RunSample serves the sample workload until ctx ends: a plain HTTP server that
// says who it is and echoes what it is sent. nsPath, when not empty, is the
// network namespace to listen in.
func RunSample(ctx context.Context, nsPath, address string) error {
	ln, err := sampleListener(ctx, nsPath, address)
	if err != nil {
		return fmt.Errorf("sample: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s, process %d, %s %s from %s\n", SampleAnswer, os.Getpid(), r.Method, r.URL.Path, r.RemoteAddr)
	})
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		// The visitor's end shows whether the copy was complete.
		_, _ = io.Copy(w, http.MaxBytesReader(w, r.Body, sampleBody))
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: sampleHeaderTimeout}
	stop := context.AfterFunc(ctx, func() {
		sctx, cancel := context.WithTimeout(context.Background(), sampleShutdown)
		defer cancel()
		if err := srv.Shutdown(sctx); err != nil {
			srv.Close()
		}
	})
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("sample: %w", err)
	}
	return nil
}

func sampleListener(ctx context.Context, nsPath, address string) (net.Listener, error) {
	if nsPath == "" {
		return net.Listen("tcp", address)
	}
	ns, err := netns.Open(nsPath)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netns.Listen(ctx, ns, "tcp", address)
}
