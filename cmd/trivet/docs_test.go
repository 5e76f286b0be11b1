package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var (
	codeBlock = regexp.MustCompile("(?s)```console\n(.*?)```")
	codeSpan  = regexp.MustCompile("`(trivet [^`]+)`")
	quoted    = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	flagWord  = regexp.MustCompile(`^--?([a-zA-Z][a-z-]*)`)
)

// TestCommandsInDocumentsExist: whoever is called at night copies them.
func TestCommandsInDocumentsExist(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("documents %v, %v", pages, err)
	}
	r := &rig{t: t, env: map[string]string{}}
	found := 0
	for _, page := range append(pages, "../../README.md") {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commandLines(string(raw)) {
			found++
			root := newRoot(r.app(nil, nil), extraCommands)
			if problem := missing(root, strings.Fields(quoted.ReplaceAllString(line, "X"))[1:]); problem != "" {
				t.Errorf("%s: %q: %s", filepath.Base(page), line, problem)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d command lines were found", found)
	}
}

// commandLines finds the command lines of trivet in a document.
func commandLines(text string) []string {
	var out []string
	for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
		joined := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(block[1], "")
		for line := range strings.Lines(joined) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
			line = strings.TrimPrefix(line, "$ ")
			if strings.HasPrefix(line, "trivet ") {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		out = append(out, strings.Join(strings.Fields(span[1]), " "))
	}
	return out
}

// missing says what of a command line is not there: the command, or a flag. It
// is empty when all is.
func missing(root *cobra.Command, words []string) string {
	cmd := root
	for i, word := range words {
		switch {
		case word == "--" || strings.HasPrefix(word, ">") || strings.HasPrefix(word, "<"):
			return ""
		case strings.HasPrefix(word, "-"):
			m := flagWord.FindStringSubmatch(word)
			if m == nil {
				continue
			}
			if m[1] == "help" || m[1] == "h" {
				continue
			}
			if lookupFlag(cmd, m[1], strings.HasPrefix(word, "--")) == nil {
				return "there is no flag " + word
			}
		case cmd.HasSubCommands() && (i == 0 || !strings.HasPrefix(words[i-1], "-")):
			next, _, err := cmd.Find([]string{word})
			if err != nil || next == cmd {
				// "trivet operator raft …" is about all of them.
				if strings.HasPrefix(word, "…") || strings.ContainsAny(word, "|") {
					return ""
				}
				return "there is no command " + word
			}
			cmd = next
		}
	}
	return ""
}

func lookupFlag(cmd *cobra.Command, name string, long bool) *pflag.Flag {
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags(), cmd.InheritedFlags()} {
		if f := flags.Lookup(name); long && f != nil {
			return f
		}
		if !long {
			if f := flags.ShorthandLookup(name[:1]); f != nil {
				return f
			}
		}
	}
	return nil
}
