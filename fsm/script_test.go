package fsm

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rewrite regenerates the expectations of the scripts. Read the diff before
// you commit it: the scripts say what the state machine promises.
var rewrite = flag.Bool("rewrite", false, "rewrite the expected outputs in testdata/*.txt")

// TestScripts runs the stories in testdata. A script is a sequence of steps,
//
//	# why
//	verb argument key=value flag
//	----
//	output
//
// separated by empty lines. There is one function per verb, in
// script_verbs_test.go.
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(raw))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(raw), got); diff != "" {
				t.Errorf("output differs (-script +now):\n%s", diff)
			}
		})
	}
}

// runScript executes a script and returns it with the outputs of this run.
func runScript(t *testing.T, text string) string {
	t.Helper()
	in := newInterpreter(t)
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if out.Len() > 0 {
			out.WriteString("\n\n")
		}
		var step []string
		for line := range strings.SplitSeq(block, "\n") {
			if line == "----" {
				break
			}
			step = append(step, line)
		}
		out.WriteString(strings.Join(step, "\n"))
		commands := slices.DeleteFunc(slices.Clone(step), func(line string) bool {
			return strings.HasPrefix(line, "#") || strings.TrimSpace(line) == ""
		})
		if len(commands) == 0 {
			continue
		}
		out.WriteString("\n----")
		for _, line := range commands {
			result := strings.TrimRight(in.run(line), "\n")
			if result != "" {
				out.WriteString("\n" + result)
			}
		}
	}
	return out.String() + "\n"
}

// arguments are those of one step.
type arguments struct {
	verb       string
	positional []string
	named      map[string][]string
}

func parseArguments(line string) (arguments, error) {
	var words []string
	var word strings.Builder
	quoted, pending := false, false
	for _, c := range line {
		switch {
		case c == '"':
			quoted, pending = !quoted, true
		case c == ' ' && !quoted:
			if pending {
				words = append(words, word.String())
			}
			word.Reset()
			pending = false
		default:
			word.WriteRune(c)
			pending = true
		}
	}
	if quoted {
		return arguments{}, fmt.Errorf("unbalanced quotes in %q", line)
	}
	if pending {
		words = append(words, word.String())
	}
	a := arguments{verb: words[0], named: map[string][]string{}}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok && !strings.Contains(key, "/") {
			a.named[key] = append(a.named[key], value)
		} else {
			a.positional = append(a.positional, w)
		}
	}
	return a, nil
}

// pos returns a positional argument, empty if it is missing.
func (a arguments) pos(i int) string {
	if i < len(a.positional) {
		return a.positional[i]
	}
	return ""
}

// get returns a named argument or its default.
func (a arguments) get(key, def string) string {
	if v := a.named[key]; len(v) > 0 {
		return v[0]
	}
	return def
}

// has tells whether a flag was given.
func (a arguments) has(flag string) bool { return slices.Contains(a.positional, flag) }
