package fsm

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// forbidden are the packages through which the outside world could get in,
// and what would make the state machine depend on its surroundings.
var forbidden = map[string]string{
	"os":                          "I/O",
	"os/exec":                     "I/O",
	"syscall":                     "I/O",
	"net":                         "I/O",
	"net/http":                    "I/O",
	"log":                         "I/O",
	"log/slog":                    "I/O",
	"time":                        "a clock",
	"math/rand":                   "randomness",
	"math/rand/v2":                "randomness",
	"crypto/rand":                 "randomness",
	"hash/maphash":                "a seed of the process",
	"regexp":                      "a matcher whose behaviour may differ between programs",
	"context":                     "cancellation",
	"unsafe":                      "memory",
	"github.com/hashicorp/raft":   "the log",
	"google.golang.org/grpc":      "the network",
	"github.com/google/uuid":      "randomness",
	"trivet/internal/errs":        "the network",
	"trivet/proto/trivet/peer/v1": "the network",
}

// allowed are the packages outside of the standard library.
var allowed = []string{
	"google.golang.org/protobuf/", "github.com/tidwall/btree",
	"trivet/proto/trivet/command/v1", "trivet/proto/telepresence/manager",
}

// TestPurity enforces the law of the package: no clock, no randomness, no I/O,
// no goroutine.
func TestPurity(t *testing.T) {
	t.Parallel()
	set := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files++
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			checkImport(t, name, path)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", set.Position(n.Pos()))
			case *ast.SelectStmt:
				t.Errorf("%s selects", set.Position(n.Pos()))
			}
			return true
		})
	}
	if files < 20 {
		t.Errorf("only %d files were looked at", files)
	}
}

func checkImport(t *testing.T, file, path string) {
	t.Helper()
	if why, bad := forbidden[path]; bad {
		t.Errorf("%s imports %s: %s", file, path, why)
		return
	}
	if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") && first != "trivet" {
		return
	}
	for _, prefix := range allowed {
		if strings.HasPrefix(path, prefix) {
			return
		}
	}
	t.Errorf("%s imports %s, which is not on the list", file, path)
}
