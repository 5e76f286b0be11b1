package main

import (
	"io"
	"log/slog"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/internal/loglevel"
)

// newLogger makes the logger of a long-running role, and its level, which may be
// changed. level is one of loglevel.Names; format is json or text.
func newLogger(w io.Writer, level, format string) (*slog.Logger, *loglevel.Var, error) {
	_, l, err := loglevel.Parse(level)
	if err != nil {
		return nil, nil, err
	}
	v := loglevel.New(l)
	opts := &slog.HandlerOptions{Level: v}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), v, nil
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), v, nil
	}
	return nil, nil, errs.New(codes.InvalidArgument, "BAD_CONFIG", "log format %q is not known", format).WithHint("use json or text")
}
