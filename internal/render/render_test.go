package render_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/internal/errs"
	"trivet/internal/render"
)

type item struct {
	Name     string `json:"name"`
	HostPort string `json:"hostPort,omitempty"`
	Count    uint64 `json:"count"`
}

var columns = []render.Column[item]{
	{Name: "NAME", Value: func(i item) string { return i.Name }},
	{Name: "HOST PORT", Value: func(i item) string { return i.HostPort }},
	{Name: "COUNT", Wide: true, Value: func(i item) string { return fmt.Sprint(i.Count) }},
}

var items = []item{{"alpha", "127.0.0.1:1", 3}, {"b", "", 1 << 60}}

func TestListFormats(t *testing.T) {
	t.Parallel()
	want := map[render.Format]string{
		render.Table: "NAME   HOST PORT\nalpha  127.0.0.1:1\nb      -\n",
		render.Wide:  "NAME   HOST PORT    COUNT\nalpha  127.0.0.1:1  3\nb      -            1152921504606846976\n",
		render.JSON: `{
  "items": [
    {
      "name": "alpha",
      "hostPort": "127.0.0.1:1",
      "count": 3
    },
    {
      "name": "b",
      "count": 1152921504606846976
    }
  ],
  "revision": 7
}
`,
		render.YAML: "items:\n- count: 3\n  hostPort: 127.0.0.1:1\n  name: alpha\n- count: 1152921504606846976\n  name: b\nrevision: 7\n",
		render.JSONL: `{"name":"alpha","hostPort":"127.0.0.1:1","count":3}
{"name":"b","count":1152921504606846976}
`,
	}
	for format, text := range want {
		var out, errOut bytes.Buffer
		p := &render.Printer{Out: &out, Err: &errOut, Format: format}
		if err := render.List(p, items, 7, "things", columns); err != nil {
			t.Fatal(err)
		}
		if out.String() != text {
			t.Errorf("%s:\n%s\nwant:\n%s", format, out.String(), text)
		}
		if errOut.Len() != 0 {
			t.Errorf("%s: wrote %q beside the result", format, errOut.String())
		}
	}
}

func TestEmptyListIsStillReadable(t *testing.T) {
	t.Parallel()
	for format, want := range map[render.Format][2]string{
		render.Table: {"", "no things\n"},
		render.JSON:  {"{\n  \"items\": [],\n  \"revision\": 0\n}\n", ""},
		render.YAML:  {"items: []\nrevision: 0\n", ""},
		render.JSONL: {"", ""},
	} {
		var out, errOut bytes.Buffer
		p := &render.Printer{Out: &out, Err: &errOut, Format: format}
		if err := render.List[item](p, nil, 0, "things", columns); err != nil {
			t.Fatal(err)
		}
		if got := [2]string{out.String(), errOut.String()}; got != want {
			t.Errorf("%s: %q, want %q", format, got, want)
		}
	}
}

func TestTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	long := []item{{"the-name-is-never-cut-because-it-is-copied", strings.Repeat("0123456789", 5), 0}}
	var out bytes.Buffer
	p := &render.Printer{Out: &out, Err: io.Discard, Width: 60}
	if err := render.List(p, long, 0, "things", columns); err != nil {
		t.Fatal(err)
	}
	want := "NAME                                        HOST PORT\n" +
		"the-name-is-never-cut-because-it-is-copied  0123456..3456789\n"
	if out.String() != want {
		t.Errorf("table:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestTextFromOutsideCannotDriveTheTerminal(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	p := &render.Printer{Out: &out, Err: &errOut}
	evil := "a\x1b[2Jb\nc\u202e"
	if err := render.List(p, []item{{Name: evil}}, 0, "things", columns); err != nil {
		t.Fatal(err)
	}
	p.Error(errors.New(evil))
	p.Notef("%s", evil)
	for _, text := range []string{out.String(), errOut.String()} {
		if strings.ContainsAny(text, "\x1b\u202e") || !strings.Contains(text, "a?[2Jb") {
			t.Errorf("printed %q", text)
		}
	}
}

func TestObjectFormats(t *testing.T) {
	t.Parallel()
	text := func(w io.Writer) error { _, err := fmt.Fprintln(w, "as text"); return err }
	for format, want := range map[render.Format]string{
		render.Table: "as text\n",
		render.JSON:  "{\n  \"name\": \"x\",\n  \"count\": 0\n}\n",
		render.YAML:  "count: 0\nname: x\n",
		render.JSONL: "{\"name\":\"x\",\"count\":0}\n",
	} {
		var out bytes.Buffer
		p := &render.Printer{Out: &out, Err: io.Discard, Format: format}
		if err := render.Object(p, item{Name: "x"}, text); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v; want %q", format, out.String(), err, want)
		}
	}
}

func TestErrorIsACauseAndAHint(t *testing.T) {
	t.Parallel()
	conflict := errs.New(codes.FailedPrecondition, "INTERCEPT_CONFLICT", "port 80 is taken").WithHint("use --force")
	tests := map[string]struct {
		err        error
		text, json string
	}{
		"own": {
			conflict, "Error: port 80 is taken\nHint:  use --force\n",
			`{"error":{"code":"FAILED_PRECONDITION","reason":"INTERCEPT_CONFLICT","message":"port 80 is taken","hint":"use --force"}}`,
		},
		"wrapped": {
			fmt.Errorf("create intercept x: %w", conflict), "Error: create intercept x: port 80 is taken\nHint:  use --force\n",
			`{"error":{"code":"FAILED_PRECONDITION","reason":"INTERCEPT_CONFLICT","message":"create intercept x: port 80 is taken","hint":"use --force"}}`,
		},
		"wire": {
			fmt.Errorf("list: %w", conflict.GRPCStatus().Err()), "Error: list: port 80 is taken\nHint:  use --force\n",
			`{"error":{"code":"FAILED_PRECONDITION","reason":"INTERCEPT_CONFLICT","message":"list: port 80 is taken","hint":"use --force"}}`,
		},
		"plain status of two lines": {
			status.Error(codes.Internal, "one\n two"), "Error: one; two\n",
			`{"error":{"code":"INTERNAL","reason":"INTERNAL","message":"one; two"}}`,
		},
		"retry": {
			errs.New(codes.Unavailable, "NO_QUORUM", "no leader").WithRetry(2 * time.Second),
			"Error: no leader\nHint:  try again in 2s\n",
			`{"error":{"code":"UNAVAILABLE","reason":"NO_QUORUM","message":"no leader","hint":"try again in 2s"}}`,
		},
		"nothing said": {
			errors.New(""), "Error: no reason was given\n",
			`{"error":{"code":"UNKNOWN","reason":"UNKNOWN","message":"no reason was given"}}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for format, want := range map[render.Format]string{render.Table: tt.text, render.JSON: tt.json + "\n", render.YAML: tt.json + "\n"} {
				var out, errOut bytes.Buffer
				p := &render.Printer{Out: &out, Err: &errOut, Format: format}
				p.Error(tt.err)
				if errOut.String() != want || out.Len() != 0 {
					t.Errorf("%s: %q (stdout %q), want %q", format, errOut.String(), out.String(), want)
				}
				if format != render.Table && !json.Valid(errOut.Bytes()) {
					t.Errorf("%s: not JSON: %s", format, errOut.String())
				}
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	byCode := map[codes.Code]int{
		codes.OK: 0, codes.Canceled: 130, codes.Unknown: 1, codes.InvalidArgument: 2, codes.DeadlineExceeded: 7,
		codes.NotFound: 3, codes.AlreadyExists: 5, codes.PermissionDenied: 4, codes.ResourceExhausted: 6,
		codes.FailedPrecondition: 5, codes.Aborted: 5, codes.OutOfRange: 2, codes.Unimplemented: 1,
		codes.Internal: 1, codes.Unavailable: 6, codes.DataLoss: 1, codes.Unauthenticated: 4,
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want, ok := byCode[code]
		if !ok {
			t.Errorf("no expectation for %s", code)
		}
		if got := render.ExitCode(status.Error(code, "x")); got != want {
			t.Errorf("status %s: exit %d, want %d", code, got, want)
		}
		if code == codes.OK {
			continue
		}
		wrapped := fmt.Errorf("a: %w", errs.New(code, "R", "x"))
		if got := render.ExitCode(wrapped); got != want {
			t.Errorf("wrapped %s: exit %d, want %d", code, got, want)
		}
	}
	for err, want := range map[error]int{
		nil: 0, errors.New("x"): 1, context.Canceled: 130,
		fmt.Errorf("wait: %w", context.DeadlineExceeded): 7,
		status.Error(codes.Code(99), "x"):                1,
	} {
		if got := render.ExitCode(err); got != want {
			t.Errorf("ExitCode(%v) = %d, want %d", err, got, want)
		}
	}
}

func TestFormatNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"table", "wide", "json", "yaml", "jsonl"} {
		f, err := render.ParseFormat(name)
		if err != nil || f.String() != name {
			t.Errorf("ParseFormat(%q) = %v, %v", name, f, err)
		}
	}
	_, err := render.ParseFormat("jsn")
	if e := errs.From(err); render.ExitCode(err) != render.ExitUsage || !strings.Contains(e.Hint, "did you mean json?") {
		t.Errorf("ParseFormat(jsn): %v, hint %q", err, e.Hint)
	}
}

func TestAgeAndBytes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "0s", -time.Second: "0s", 59 * time.Second: "59s", 3*time.Minute + 9*time.Second: "3m",
		2*time.Hour + 5*time.Minute: "2h5m", 2 * time.Hour: "2h", 99 * time.Hour: "4d3h", 48 * time.Hour: "2d",
	} {
		if got := render.Age(now.Add(-d), now); got != want {
			t.Errorf("Age(%s) = %q, want %q", d, got, want)
		}
	}
	if got := render.Age(time.Time{}, now); got != "" {
		t.Errorf("Age(zero) = %q", got)
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 256 << 20: "256 MiB", 1 << 63: "8 EiB"} {
		if got := render.Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}
