// Command report reads the output of `go test -json` from standard input and
// prints what a person wants of it: a line per package, the output of what
// failed, and, last, what was skipped and why.
//
// With -allow FILE it fails when a test was skipped that the file does not
// list. A line of the file is `PACKAGE TEST REASON`, where REASON is a part of
// the skip's message; # starts a comment.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

type key struct{ pkg, test string }

type report struct {
	output          map[key][]string
	passed, failed  int
	failures        []key
	skipped         []key
	buildOutput     []string
	packages, empty int
}

func main() {
	allow := flag.String("allow", "", "file that lists the tests that may be skipped")
	flag.Parse()
	r := &report{output: make(map[key][]string)}
	if err := r.read(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if !r.finish(os.Stdout, *allow) {
		os.Exit(1)
	}
}

func (r *report) read(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil {
				r.take(e, out)
			} else {
				fmt.Fprint(out, line)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e event, out io.Writer) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[k] = append(r.output[k], e.Output)
	case "build-output":
		r.buildOutput = append(r.buildOutput, e.Output)
	case "pass", "fail", "skip":
		r.end(e, k, out)
	}
}

func (r *report) end(e event, k key, out io.Writer) {
	switch {
	case e.Test == "" && e.Action == "skip":
		r.empty++
	case e.Test == "":
		r.packages++
		fmt.Fprintf(out, "%-4s %6.1fs %s\n", e.Action, e.Elapsed, e.Package)
		if e.Action == "fail" {
			r.failures = append(r.failures, k)
		}
	case e.Action == "pass":
		r.passed++
		delete(r.output, k)
	case e.Action == "fail":
		r.failed++
		r.failures = append(r.failures, k)
	case e.Action == "skip":
		r.skipped = append(r.skipped, k)
	}
}

// finish prints the rest and says whether all is well.
func (r *report) finish(out io.Writer, allowFile string) bool {
	for _, l := range r.buildOutput {
		fmt.Fprint(out, l)
	}
	for _, k := range r.failures {
		fmt.Fprintf(out, "\n=== %s %s\n%s", k.pkg, k.test, strings.Join(r.output[k], ""))
	}
	refused := r.skips(out, allowFile)
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
	return len(r.failures) == 0 && r.failed == 0 && len(r.buildOutput) == 0 && refused == 0 && r.packages > 0
}

func (r *report) skips(out io.Writer, allowFile string) (refused int) {
	if len(r.skipped) == 0 {
		fmt.Fprintln(out, "\nnothing was skipped")
		return 0
	}
	allowed, err := readAllowed(allowFile)
	if err != nil {
		fmt.Fprintf(out, "\nread %s: %v\n", allowFile, err)
		return 1
	}
	fmt.Fprintln(out, "\nskipped:")
	for _, k := range r.skipped {
		reason := skipReason(r.output[k])
		mark := ""
		if allowFile != "" && !slices.ContainsFunc(allowed, func(a []string) bool {
			return a[0] == k.pkg && (a[1] == "*" || a[1] == k.test) && strings.Contains(reason, a[2])
		}) {
			mark = "   NOT ALLOWED by " + allowFile
			refused++
		}
		fmt.Fprintf(out, "  %s %s: %s%s\n", k.pkg, k.test, reason, mark)
	}
	return refused
}

// skipReason is the message of a skip, without its place in the source.
func skipReason(output []string) string {
	for _, l := range slices.Backward(output) {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "---") || strings.HasPrefix(l, "===") {
			continue
		}
		if _, after, ok := strings.Cut(l, ".go:"); ok {
			if _, msg, ok := strings.Cut(after, ": "); ok {
				return msg
			}
		}
		return l
	}
	return "no reason given"
}

func readAllowed(file string) ([][]string, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out [][]string
	for l := range strings.Lines(string(raw)) {
		l, _, _ = strings.Cut(l, "#")
		f := strings.SplitN(strings.TrimSpace(l), " ", 3)
		if len(f) == 3 {
			out = append(out, f)
		}
	}
	return out, nil
}
