package steal

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// TestObjectIsWhatItsSourceCompilesTo builds the object again, from a copy in
// another directory, and compares bytes.
func TestObjectIsWhatItsSourceCompilesTo(t *testing.T) {
	for _, tool := range []string{"clang-14", "llvm-strip-14"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the object is only reproducible with LLVM 14: %v", err)
		}
	}
	want, err := os.ReadFile("steal.bpf.o")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	if err := os.CopyFS(elsewhere, os.DirFS("bpf")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"bpf", elsewhere} {
		out := filepath.Join(t.TempDir(), "steal.bpf.o")
		if msg, err := exec.Command(filepath.Join(dir, "build.sh"), out).CombinedOutput(); err != nil {
			t.Fatalf("build in %s: %v\n%s", dir, err, msg)
		}
		got, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("steal.bpf.o differs from what bpf/build.sh makes in %s; run it and commit the result", dir)
		}
	}
}

// member is where a field of a C struct is.
type member struct {
	Name         string
	Offset, Size int
}

func members(t *testing.T, typ btf.Type) (list []member, size int) {
	t.Helper()
	s, ok := btf.As[*btf.Struct](typ)
	if !ok {
		t.Fatalf("%v is no struct", typ)
	}
	for _, m := range s.Members {
		n, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, member{m.Name, int(m.Offset.Bytes()), n})
	}
	return list, int(s.Size)
}

// TestGoAgreesWithC holds the layouts that are written out twice together.
func TestGoAgreesWithC(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	key, size := members(t, spec.Maps["trivet_ports"].Key)
	want := []member{{"addr", 0, 16}, {"port", 16, 2}, {"family", 18, 1}, {"protocol", 19, 1}}
	if diff := cmp.Diff(want, key); diff != "" || size != keySize {
		t.Errorf("key of %d bytes, want %d (-want +got)\n%s", size, keySize, diff)
	}
	if n := spec.Maps["trivet_ports"].MaxEntries; n != MaxKeys {
		t.Errorf("room for %d keys, want %d", n, MaxKeys)
	}
	stats, size := members(t, spec.Maps["trivet_stats"].Value)
	want = []member{
		{"stolen", 0, 8},
		{"self", 8, 8},
		{"stale", 16, 8},
		{"no_listener", 24, 8},
		{"assign_error", 32, 8},
		{"not_armed", 40, 8},
	}
	if diff := cmp.Diff(want, stats); diff != "" || size != kernelStatsSize {
		t.Errorf("stats of %d bytes, want %d (-want +got)\n%s", size, kernelStatsSize, diff)
	}
	var stale uint64
	if err := spec.Variables[staleVariable].Get(&stale); err != nil || stale != uint64(DefaultStaleAfter) {
		t.Errorf("built-in staleness %d (%v), want %v", stale, err, DefaultStaleAfter)
	}
}
