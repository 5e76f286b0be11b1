package engine

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/internal/errs"
)

// Metadata keys between trivet's clients and servers.
const (
	// MetaRequest numbers a write: "<writer>/<number>/<lowest>".
	MetaRequest = "trivet-request"
	// MetaRevision is decimal: in a request the revision that the caller has
	// seen, in a response header the one that the answer shows.
	MetaRevision = "trivet-revision"
	// MetaConsistency is a read's level.
	MetaConsistency = "trivet-consistency"
)

// maxWriter bounds the length of a writer's name.
const maxWriter = 128

// RequestFromContext reads the caller's numbering from the call's metadata;
// nil when there is none.
func RequestFromContext(ctx context.Context) (*Request, error) {
	raw := incoming(ctx, MetaRequest)
	if raw == "" {
		return nil, nil
	}
	bad := func() error {
		return errs.New(codes.InvalidArgument, "BAD_REQUEST_NUMBER", "metadata %s %q is not <writer>/<number>/<lowest>", MetaRequest, raw)
	}
	rest, low, ok := cutLast(raw)
	if !ok {
		return nil, bad()
	}
	writer, num, ok := cutLast(rest)
	if !ok || writer == "" || len(writer) > maxWriter {
		return nil, bad()
	}
	number, err1 := strconv.ParseUint(num, 10, 64)
	lowest, err2 := strconv.ParseUint(low, 10, 64)
	if err1 != nil || err2 != nil || number == 0 || lowest > number {
		return nil, bad()
	}
	// "server/" belongs to the servers' own numbering.
	return &Request{Writer: "client/" + writer, Number: number, Lowest: lowest}, nil
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+1:], true
}

// ReadOptions reads level and seen revision from the call's metadata.
func ReadOptions(ctx context.Context) (Level, uint64, error) {
	level, err := ParseLevel(incoming(ctx, MetaConsistency))
	if err != nil {
		return 0, 0, err
	}
	var seen uint64
	if raw := incoming(ctx, MetaRevision); raw != "" {
		if seen, err = strconv.ParseUint(raw, 10, 64); err != nil {
			return 0, 0, errs.New(codes.InvalidArgument, "BAD_REVISION", "metadata %s %q is not a number", MetaRevision, raw)
		}
	}
	return level, seen, nil
}

func incoming(ctx context.Context, key string) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// FormatRevision is the value of MetaRevision.
func FormatRevision(rev uint64) string { return strconv.FormatUint(rev, 10) }
