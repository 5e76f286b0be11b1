package systest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"
	"time"
)

// Exit codes of curl: what became of a connection.
const (
	CurlOK           = 0
	CurlRefused      = 7
	CurlPartial      = 18
	CurlTimeout      = 28
	CurlEmptyAnswer  = 52
	CurlReceiveError = 56
)

// CurlResult is how a run of curl ended.
type CurlResult struct {
	Code int
	// Out is what it printed, up to 1 MiB; SHA256 is of all of it, Size the
	// length.
	Out    string
	SHA256 string
	Size   int64
	Err    string
	Took   time.Duration
}

// curlOut keeps the beginning of what curl prints and sums all of it up.
type curlOut struct {
	head bytes.Buffer
	size int64
	sum  io.Writer
}

const curlHead = 1 << 20

func (o *curlOut) Write(p []byte) (int, error) {
	o.size += int64(len(p))
	if room := curlHead - o.head.Len(); room > 0 {
		o.head.Write(p[:min(room, len(p))])
	}
	return o.sum.Write(p)
}

// Curl runs curl in the visitor's place. It follows no configuration file of
// the user.
func (c *Cluster) Curl(ctx context.Context, t testing.TB, args ...string) CurlResult {
	t.Helper()
	sum := sha256.New()
	out := &curlOut{sum: sum}
	began := time.Now()
	p := Launch(t, Command{
		Name: "curl", Path: Curl.Path(t), Args: append([]string{"-q", "--silent", "--show-error", "--noproxy", "*"}, args...),
		Net: c.Visitor, Stdout: out, Quiet: true,
	})
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("curl %q: %v", args, err)
	}
	return CurlResult{
		Code: code, Out: out.head.String(), SHA256: hex.EncodeToString(sum.Sum(nil)), Size: out.size, Err: p.ErrOut(),
		Took: time.Since(began),
	}
}
