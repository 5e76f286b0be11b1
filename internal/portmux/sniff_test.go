package portmux

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSniff(t *testing.T) {
	t.Parallel()
	prefixes := []string{"TRVT2", "TRVT"}
	for in, want := range map[string]verdict{
		"\x16":     {tls: true},
		"\x16\x03": {tls: true},
		"T":        {more: true},
		"TR":       {more: true},
		"TRV":      {more: true},
		"TRVT":     {raw: "TRVT"},
		"TRVTx":    {raw: "TRVT"},
		"TRAC":     {reason: ReasonHTTP},
		"G":        {more: true},
		"GET ":     {reason: ReasonHTTP},
		"GETX":     {reason: ReasonUnknown},
		"x":        {reason: ReasonUnknown},
		"\x00":     {reason: ReasonUnknown},
		"\x80\x2e": {reason: ReasonUnknown}, // SSL 2
	} {
		if diff := cmp.Diff(want, sniff([]byte(in), prefixes), cmp.AllowUnexported(verdict{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

// FuzzSniff: there is always exactly one verdict, and with as many bytes as
// the longest prefix it is final.
func FuzzSniff(f *testing.F) {
	for _, s := range []string{"\x16\x03\x01", "TRVT", "TRV", "GET /", "PRI * HTTP/2.0", "x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		v := sniff(b, []string{RelayPreamble})
		n := 0
		for _, said := range []bool{v.more, v.tls, v.raw != "", v.reason != ""} {
			if said {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%q: %d verdicts: %+v", b, n, v)
		}
		if v.more && len(b) >= len(RelayPreamble) {
			t.Fatalf("%q: wants more", b)
		}
		if (v.raw != "") != strings.HasPrefix(string(b), RelayPreamble) {
			t.Fatalf("%q: %+v", b, v)
		}
	})
}
