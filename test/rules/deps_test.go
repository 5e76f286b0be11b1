// Package rules holds the rules of the house that a machine can check: which
// package may import which, where actors and the kernel may be touched, and
// that every package says what it is for.
package rules

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type pkg struct {
	ImportPath   string
	Dir          string
	Doc          string
	GoFiles      []string
	Imports      []string
	Deps         []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,GoFiles,Imports,Deps,TestImports,XTestImports", "trivet/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	all := make(map[string]pkg)
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
	return all
}

// area is the top-level folder of one of our packages.
func area(path string) string {
	rest, ok := strings.CutPrefix(path, "trivet/")
	if !ok {
		return ""
	}
	parts := strings.Split(rest, "/")
	if parts[0] == "cmd" && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// allowed lists, by area, the areas that its packages may import. Every area
// may import itself, and internal's leaves are open to all but proto and fsm.
var allowed = map[string][]string{
	"proto":            {},
	"fsm":              {"proto"},
	"actors":           {"fsm", "proto", "internal"},
	"cluster":          {"fsm", "actors", "tunnel", "proto", "internal"},
	"tunnel":           {"proto", "internal"},
	"node":             {"tunnel", "proto", "internal"},
	"client":           {"tunnel", "proto", "internal"},
	"internal":         {"proto", "internal"},
	"bench":            {"fsm", "actors", "cluster", "tunnel", "node", "client", "proto", "internal", "cmd/trivet"},
	"test":             {"fsm", "actors", "cluster", "tunnel", "node", "client", "proto", "internal", "cmd/trivet"},
	"cmd/trivet":       {"fsm", "actors", "cluster", "tunnel", "node", "client", "proto", "internal", "web"},
	"cmd/trivet-bench": {"fsm", "actors", "cluster", "tunnel", "node", "client", "proto", "internal", "bench", "test", "cmd/trivet"},
}

func TestDependencyDirection(t *testing.T) {
	for path, p := range packages(t) {
		from := area(path)
		may, known := allowed[from]
		if !known {
			t.Errorf("%s: the folder %q is not in the layout; a new one needs an ADR", path, from)
			continue
		}
		for _, imp := range p.Imports {
			to := area(imp)
			if to == "" || to == from || slices.Contains(may, to) {
				continue
			}
			t.Errorf("%s imports %s: %s may import only %v", path, imp, from, may)
		}
	}
}

// onlyThere lists third-party modules that may be linked only below some
// areas, whatever the way.
var onlyThere = map[string][]string{
	"github.com/asynkron/protoactor-go": {"internal/rt"},
	"github.com/hashicorp/raft":         {"cluster/logstore", "cluster/replica", "cluster/peers", "cluster"},
}

func TestDirectImportersOfSomeLibraries(t *testing.T) {
	for path, p := range packages(t) {
		here := strings.TrimPrefix(path, "trivet/")
		for _, imp := range p.Imports {
			for lib, where := range onlyThere {
				if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !slices.Contains(where, here) {
					t.Errorf("%s imports %s, which only %v may", path, imp, where)
				}
			}
			if imp == "github.com/asynkron/protoactor-go/remote" || imp == "github.com/asynkron/protoactor-go/cluster" {
				t.Errorf("%s imports %s, which nobody may: it loses messages silently", path, imp)
			}
		}
	}
}

// unreachable lists what must not be linked into an area by any path.
var unreachable = map[string][]string{
	"fsm":    {"google.golang.org/grpc", "github.com/hashicorp/raft", "github.com/asynkron/protoactor-go", "github.com/cilium/ebpf"},
	"actors": {"github.com/hashicorp/raft", "github.com/cilium/ebpf"},
	"node":   {"github.com/hashicorp/raft", "trivet/fsm", "trivet/actors", "trivet/cluster"},
	"client": {"github.com/hashicorp/raft", "github.com/cilium/ebpf", "trivet/fsm", "trivet/actors", "trivet/cluster"},
	"tunnel": {"github.com/hashicorp/raft", "github.com/cilium/ebpf"},
}

func TestWhatMustNotBeReachable(t *testing.T) {
	for path, p := range packages(t) {
		for _, dep := range p.Deps {
			for _, lib := range unreachable[area(path)] {
				if dep == lib || strings.HasPrefix(dep, lib+"/") {
					t.Errorf("%s reaches %s", path, dep)
				}
			}
		}
	}
}

// pure lists what the state machine may not import at all: clocks are checked
// by its own test, these by name.
var pure = []string{"os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "sync/errgroup"}

func TestStateMachineIsPure(t *testing.T) {
	for path, p := range packages(t) {
		if area(path) != "fsm" {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(pure, imp) {
				t.Errorf("%s imports %s: the state machine does no I/O and knows no chance", path, imp)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for path, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" && !onlyGenerated(p) {
			t.Errorf("%s has no package comment", path)
		}
	}
}

func onlyGenerated(p pkg) bool {
	for _, f := range p.GoFiles {
		if !strings.HasSuffix(f, ".pb.go") {
			return false
		}
	}
	return true
}

const (
	maxLines     = 800
	maxTestLines = 1200
)

func TestFilesStaySmall(t *testing.T) {
	for path, p := range packages(t) {
		entries, err := os.ReadDir(p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := e.Name()
			if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".pb.go") {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			limit := maxLines
			if strings.HasSuffix(name, "_test.go") {
				limit = maxTestLines
			}
			if n := strings.Count(string(raw), "\n"); n > limit {
				t.Errorf("%s/%s has %d lines, more than %d: find the seam", path, name, n, limit)
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, raw, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range f.Imports {
				if strings.Contains(imp.Path.Value, "testify") {
					t.Errorf("%s/%s imports %s; plain testing and go-cmp are enough", path, name, imp.Path.Value)
				}
			}
		}
	}
}
