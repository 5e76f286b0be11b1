package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// errInterrupted is the cause of a context that a signal ended.
var errInterrupted = errs.New(codes.Canceled, "INTERRUPTED", "interrupted")

// notifyContext returns a context that SIGINT and SIGTERM end. After that the
// signals have their usual effect, so that a second one ends the process.
func notifyContext() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
