package main

import (
	"io"
	"log/slog"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// newLogger makes the logger of a long-running role. level is debug, info,
// warn or error; format is json or text.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, errs.New(codes.InvalidArgument, "BAD_CONFIG", "log level %q is not known", level).
			WithHint("use debug, info, warn or error")
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	}
	return nil, errs.New(codes.InvalidArgument, "BAD_CONFIG", "log format %q is not known", format).WithHint("use json or text")
}
