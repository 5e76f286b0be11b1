package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	operatorv1 "trivet/proto/trivet/operator/v1"
)

// profileCases runs every case once more on every trivet store while its
// servers profile themselves: that costs, so it is not counted.
func profileCases(ctx context.Context, dir string, cases []raftCase, stores []*trivet) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of profiles: %w", err)
	}
	for _, c := range cases {
		for _, t := range stores {
			if err := profileCase(ctx, dir, c, t); err != nil {
				return fmt.Errorf("profile %s: %w", c.name, err)
			}
		}
	}
	return nil
}

func profileCase(ctx context.Context, dir string, c raftCase, t *trivet) error {
	leader, err := t.leader(ctx)
	if err != nil {
		return err
	}
	ops, end, err := t.operators()
	if err != nil {
		return err
	}
	defer end()
	done := make(chan error, len(ops))
	for i, op := range ops {
		name := fmt.Sprintf("%s, %s, server %d", c.name, t.name, i+1)
		if i == leader {
			name += " (leader)"
		}
		go func() {
			stream, err := op.Profile(ctx, &operatorv1.ProfileRequest{Kind: "cpu", Duration: int64(c.load.duration + warmUp)})
			if err != nil {
				done <- err
				return
			}
			var data []byte
			for err == nil {
				var chunk *operatorv1.ProfileChunk
				chunk, err = stream.Recv()
				data = append(data, chunk.GetData()...)
			}
			if !errors.Is(err, io.EOF) {
				done <- err
				return
			}
			done <- os.WriteFile(filepath.Join(dir, fileName(name)+".pprof"), data, 0o644)
		}()
	}
	_, err = c.load.run(ctx, &t.store)
	for range ops {
		err = errors.Join(err, <-done)
	}
	return err
}

// fileName makes a name for a file of words.
func fileName(words string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(words), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}), "-")
}
