package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	operatorv1 "trivet/proto/trivet/operator/v1"
)

// healthy lets all servers say that they are well, at a time at which the
// certificates of the rig are valid.
func healthy(r *rig) {
	r.now = time.Now()
	r.f.Change(func() {
		for _, s := range r.f.Servers {
			r.f.Health[s.Name] = &operatorv1.HealthResponse{Server: s.Name, Time: timestamppb.New(r.now), Checks: []*operatorv1.HealthCheck{
				{Name: "disk", Level: "ok", Message: "900 MiB of 1000 MiB free"},
			}}
		}
	})
}

func TestDoctor(t *testing.T) {
	for name, c := range map[string]struct {
		wrong func(r *rig)
		code  int
		want  string
	}{
		"all is well": {func(*rig) {}, 0, `"check":"state","level":"ok"`},
		"a full disk": {func(r *rig) {
			r.f.Health["s1"].Checks[0] = &operatorv1.HealthCheck{Name: "disk", Level: "critical", Message: "full", Hint: "make room"}
		}, 1, `"where":"s1","check":"disk","level":"critical","message":"full","hint":"make room"`},
		"a clock that is wrong": {func(r *rig) {
			r.f.Health["s2"].Time = timestamppb.New(r.now.Add(3 * time.Second))
		}, 1, `"check":"clocks","level":"critical","message":"the servers' clocks are 3s apart"`},
		"no leader": {func(r *rig) { r.f.Status.Leader = "" }, 1, `"check":"leader","level":"critical","message":"nobody leads"`},
		"states that differ": {func(r *rig) {
			r.f.Digests["s3"] = &operatorv1.DigestResponse{Server: "s3", Revision: 42, Schema: 1, Digest: []byte{1}}
		}, 1, `"check":"state","level":"critical"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 3)
			furnish(r)
			healthy(r)
			r.f.Change(func() { c.wrong(r) })
			out, errOut, code := r.run("doctor", "-o", "jsonl", "--context", "shop-operator")
			if code != c.code || !strings.Contains(out, c.want) {
				t.Errorf("exit %d, want %d and %s in:\n%s%s", code, c.code, c.want, out, errOut)
			}
		})
	}
}

func TestDoctorFindsAServerThatIsGone(t *testing.T) {
	r := newRig(t, 3)
	furnish(r)
	healthy(r)
	gone := r.f.Servers[2]
	gone.Kill()
	out, _, code := r.run("doctor", "--context", "shop-operator", "--timeout", "5s")
	if code != 1 || !strings.Contains(out, gone.Address) || !strings.Contains(out, "critical") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// unpack lists the files of a .tar.gz.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(b)
	}
}

func TestBundleHoldsEveryServersFiles(t *testing.T) {
	r := newRig(t, 2)
	furnish(r)
	healthy(r)
	r.f.Change(func() {
		r.f.Support = []*operatorv1.CollectResponse{
			{Name: "log.jsonl", Data: []byte("first ")}, {Name: "log.jsonl", Data: []byte("second")}, {Name: "heap.pprof", Data: []byte("h")},
		}
	})
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, errOut, code := r.run("operator", "bundle", "--file", path, "--context", "shop-operator"); code != 0 {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	got := unpack(t, path)
	var names []string
	for name := range got {
		names = append(names, name)
	}
	slices.Sort(names)
	want := "trivet-bundle/doctor.json trivet-bundle/s1/heap.pprof trivet-bundle/s1/log.jsonl " +
		"trivet-bundle/s2/heap.pprof trivet-bundle/s2/log.jsonl trivet-bundle/version.txt"
	if strings.Join(names, " ") != want || got["trivet-bundle/s1/log.jsonl"] != "first second" {
		t.Errorf("files %v, log %q", names, got["trivet-bundle/s1/log.jsonl"])
	}
	// It is never replaced.
	if _, errOut, code := r.run("operator", "bundle", "--file", path, "--context", "shop-operator"); code == 0 || !strings.Contains(errOut, "exists already") {
		t.Errorf("a second bundle under the same name: exit %d, %s", code, errOut)
	}
}

func TestBundleRefusesNamesThatLeadElsewhere(t *testing.T) {
	for _, name := range []string{"../evil", "/etc/evil", "a/b", ".."} {
		r := newRig(t, 1)
		furnish(r)
		healthy(r)
		r.f.Change(func() {
			r.f.Support = []*operatorv1.CollectResponse{{Name: "log.jsonl", Data: []byte("x")}, {Name: name, Data: []byte("x")}}
		})
		path := filepath.Join(t.TempDir(), "b.tar.gz")
		_, errOut, code := r.run("operator", "bundle", "--file", path, "--context", "shop-operator")
		if code != 0 || !strings.Contains(errOut, "sent a file named") {
			t.Fatalf("%q: exit %d, %s", name, code, errOut)
		}
		for file := range unpack(t, path) {
			if strings.Contains(file, "evil") || strings.Contains(file, "..") {
				t.Errorf("%q came in as %q", name, file)
			}
		}
	}
}

func TestConfigCommands(t *testing.T) {
	r := newRig(t, 1)
	path := filepath.Join(t.TempDir(), "server.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("name: s1\ndataDirr: /data\n")
	if _, errOut, code := r.run("config", "validate", "--config", path); code != 2 || !strings.Contains(errOut, `did you mean "dataDir"?`) {
		t.Errorf("an unknown key: exit %d, %s", code, errOut)
	}
	write("name: s1\nraftMultiplier: 3\n")
	out, errOut, code := r.run("config", "print", "--config", path)
	if code != 0 || !strings.Contains(out, "raftMultiplier") || !strings.Contains(out, "default") {
		t.Errorf("print: exit %d\n%s%s", code, out, errOut)
	}
	for _, kind := range []string{"server", "node"} {
		out, errOut, code := r.run("config", "schema", "--kind", kind)
		if code != 0 || !strings.Contains(out, `"additionalProperties": false`) {
			t.Errorf("schema of %s: exit %d, %s%s", kind, code, out, errOut)
		}
	}
	if _, _, code := r.run("config", "schema", "--kind", "boat"); code != 2 {
		t.Errorf("an unknown kind: exit %d", code)
	}
}
