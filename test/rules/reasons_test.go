package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reasonsFile is the catalogue of reasons, from the root of the repository.
const reasonsFile = "docs/reasons.md"

var upperSnake = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)

// reasonAreas are the folders whose errors reach users.
var reasonAreas = []string{"actors", "client", "cluster", "cmd/trivet", "fsm", "internal", "node", "tunnel"}

// notProducts are folders below them that only tests use.
var notProducts = []string{"client/clienttest", "cluster/clustertest", "node/internal/managertest"}

// reasonsInSource finds the reasons that the source can return, with one place
// each: the values of constants named Reason… or reason…, and what is given as
// a literal to errs.New or to a field named Reason.
func reasonsInSource(t *testing.T, root string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	fset := token.NewFileSet()
	add := func(lit ast.Expr) {
		l, ok := lit.(*ast.BasicLit)
		if !ok || l.Kind != token.STRING {
			return
		}
		if text, err := strconv.Unquote(l.Value); err == nil && upperSnake.MatchString(text) {
			if _, known := found[text]; !known {
				pos := fset.Position(l.Pos())
				rel, _ := filepath.Rel(root, pos.Filename)
				found[text] = rel + ":" + strconv.Itoa(pos.Line)
			}
		}
	}
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if strings.HasPrefix(strings.ToLower(name.Name), "reason") && i < len(n.Values) {
					add(n.Values[i])
				}
			}
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "New" && len(n.Args) > 1 {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "errs" {
					add(n.Args[1])
				}
			}
			// In errs itself.
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "New" && len(n.Args) > 1 {
				add(n.Args[1])
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Reason" {
				add(n.Value)
			}
		}
		return true
	}
	for _, area := range reasonAreas {
		err := filepath.WalkDir(filepath.Join(root, area), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if rel, _ := filepath.Rel(root, path); d.IsDir() && (slices.Contains(notProducts, rel) || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
				return nil
			}
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, visit)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

var reasonRow = regexp.MustCompile("(?m)^\\| `([A-Z0-9_]+)` \\| ([^|]*) \\| ([^|]*) \\|$")

// TestEveryReasonIsInTheCatalogue: programs branch on reasons and people look
// them up, so the catalogue has each of them, and none that nobody returns.
func TestEveryReasonIsInTheCatalogue(t *testing.T) {
	root := filepath.Join("..", "..")
	raw, err := os.ReadFile(filepath.Join(root, reasonsFile))
	if err != nil {
		t.Fatal(err)
	}
	source := reasonsInSource(t, root)
	if len(source) < 100 {
		t.Fatalf("only %d reasons were found in the source", len(source))
	}
	listed := make(map[string]bool)
	for _, row := range reasonRow.FindAllStringSubmatch(string(raw), -1) {
		reason, means, do := row[1], strings.TrimSpace(row[2]), strings.TrimSpace(row[3])
		if listed[reason] {
			t.Errorf("%s lists %s twice", reasonsFile, reason)
		}
		listed[reason] = true
		if source[reason] == "" {
			t.Errorf("%s lists %s, which nothing returns", reasonsFile, reason)
		}
		if means == "" || do == "" {
			t.Errorf("%s does not say what %s means or what to do", reasonsFile, reason)
		}
	}
	for reason, where := range source {
		if !listed[reason] {
			t.Errorf("%s lacks %s (%s)", reasonsFile, reason, where)
		}
	}
}
