package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

// TestLinksInDocumentsLeadSomewhere: to a file that is there, and to a heading
// in it.
func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	root := filepath.Join("..", "..")
	pages := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	checked := 0
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(raw), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			checked++
			target := page
			if to != "" {
				target = filepath.Join(filepath.Dir(page), to)
			}
			content, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() && anchor == "" {
				continue
			}
			switch {
			case err != nil:
				t.Errorf("%s links to %s: %v", page, m[1], err)
			case anchor != "" && !slugs(string(content))[anchor]:
				t.Errorf("%s links to %s: there is no such heading", page, m[1])
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d links were found", checked)
	}
}

// slugs are the anchors of a document's headings.
func slugs(text string) map[string]bool {
	out := make(map[string]bool)
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return out
}
