package engine

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
)

// FuzzMetadata reads what clients say of their calls.
func FuzzMetadata(f *testing.F) {
	f.Add("w/1/1", "7", "stale")
	f.Add("a/b/2/1", "", "linearizable")
	f.Add("//", "-1", "x")
	f.Fuzz(func(t *testing.T, request, revision, level string) {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{
			MetaRequest: {request}, MetaRevision: {revision}, MetaConsistency: {level},
		})
		req, err := RequestFromContext(ctx)
		if err == nil && req != nil && (!strings.HasPrefix(req.Writer, "client/") || req.Number == 0 || req.Lowest > req.Number) {
			t.Errorf("%q was read as %+v", request, req)
		}
		_, _, _ = ReadOptions(ctx)
	})
}
