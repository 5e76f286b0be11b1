package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"trivet/internal/config"
	"trivet/internal/errs"
)

type raftSection struct {
	ElectionTimeout config.Duration `json:"electionTimeout"`
	Multiplier      int             `json:"multiplier"`
}

type common struct {
	DataDir string `json:"dataDir"`
}

type serverFile struct {
	common
	Listen  string            `json:"listen"`
	Peers   []peer            `json:"peers"`
	Tags    []string          `json:"tags"`
	Labels  map[string]string `json:"labels"`
	Raft    raftSection       `json:"raft"`
	Verbose bool              `json:"verbose"`
}

type peer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

func (f *serverFile) SetDefaults() {
	f.Listen = ":7400"
	f.Raft = raftSection{ElectionTimeout: config.Duration(500 * time.Millisecond), Multiplier: 1}
}

func TestFileIsLaidOverDefaults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "server.yaml")
	doc := `
# a comment
dataDir: /var/lib/x
peers:
- {name: a, address: "127.0.0.1:1"}
labels: {zone: east}
raft:
  electionTimeout: 2s
verbose:
`
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := config.Load[serverFile](path)
	if err != nil {
		t.Fatal(err)
	}
	want := serverFile{
		common: common{DataDir: "/var/lib/x"},
		Listen: ":7400",
		Peers:  []peer{{Name: "a", Address: "127.0.0.1:1"}},
		Labels: map[string]string{"zone": "east"},
		Raft:   raftSection{ElectionTimeout: config.Duration(2 * time.Second), Multiplier: 1},
	}
	if d := cmp.Diff(want, *got, cmp.AllowUnexported(serverFile{})); d != "" {
		t.Errorf("loaded file (-want +got):\n%s", d)
	}
}

func TestBadContentIsRefusedWithPlaceAndSuggestion(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ doc, message, hint string }{
		"misspelt key": {
			"lisen: :1", `f.yaml: lisen: unknown key; did you mean "listen"?`,
			"keys allowed at the top: dataDir, labels, listen, peers, raft, tags, verbose",
		},
		"misspelt key below": {
			"raft: {electonTimeout: 1s}", `f.yaml: raft.electonTimeout: unknown key; did you mean "electionTimeout"?`,
			"keys allowed under raft: electionTimeout, multiplier",
		},
		"misspelt key in a list": {
			"peers: [{name: a}, {adress: b}]", `f.yaml: peers[1].adress: unknown key; did you mean "address"?`,
			"keys allowed under peers[1]: address, name",
		},
		"other letter case":  {"Listen: x", `f.yaml: Listen: unknown key; did you mean "listen"?`, ""},
		"kebab case":         {"data-dir: x", `f.yaml: data-dir: unknown key; did you mean "dataDir"?`, ""},
		"nothing like it":    {"zzzzzz: x", `f.yaml: zzzzzz: unknown key`, ""},
		"bare number":        {"raft: {electionTimeout: 5}", `f.yaml: raft.electionTimeout: want a duration such as "500ms", "10s" or "2h"`, ""},
		"not a duration":     {"raft: {electionTimeout: soon}", `f.yaml: raft.electionTimeout: want a duration such as "500ms", "10s" or "2h"`, ""},
		"number for text":    {"listen: 7400", `f.yaml: listen: want text (put it in quotes), found the number 7400`, ""},
		"yaml's own boolean": {"listen: no", `f.yaml: listen: want text (put it in quotes), found false`, ""},
		"text for number":    {"raft: {multiplier: many}", `f.yaml: raft.multiplier: want a whole number in range, found the text "many"`, ""},
		"fraction":           {"raft: {multiplier: 1.5}", `f.yaml: raft.multiplier: want a whole number in range, found the number 1.5`, ""},
		"list for mapping":   {"raft: [1]", `f.yaml: raft: want a mapping (key: value), found a list`, ""},
		"mapping for list":   {"peers: {a: b}", `f.yaml: peers: want a list, found a mapping`, ""},
		"map value":          {"labels: {zone: 3}", `f.yaml: labels.zone: want text (put it in quotes), found the number 3`, ""},
		"not a mapping":      {"- a", `f.yaml: want a mapping (key: value), found a list`, ""},
		"twice":              {"listen: a\nlisten: b", `f.yaml: line 2: key "listen" already set in map`, ""},
		"two documents":      {"listen: a\n---\nlisten: b", `f.yaml: line 2 begins a second YAML document; only one is read`, ""},
		"several problems":   {"lisen: x\nverbose: maybe", `f.yaml: lisen: unknown key; did you mean "listen"?; verbose: want true or false, found the text "maybe"`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse[serverFile]("f.yaml", []byte(tt.doc))
			e := errs.From(err)
			if e == nil || e.Code != codes.InvalidArgument || e.Reason != config.ReasonInvalid {
				t.Fatalf("error = %v, want InvalidArgument %s", err, config.ReasonInvalid)
			}
			if e.Message != tt.message {
				t.Errorf("message\n got %s\nwant %s", e.Message, tt.message)
			}
			if tt.hint != "" && e.Hint != tt.hint {
				t.Errorf("hint\n got %s\nwant %s", e.Hint, tt.hint)
			}
		})
	}
}

func TestBrokenYAMLNamesTheLine(t *testing.T) {
	t.Parallel()
	_, err := config.Parse[serverFile]("f.yaml", []byte("listen: a\n  raft: {"))
	if err == nil || !strings.HasPrefix(err.Error(), "f.yaml: line ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error = %v, want one line that names the file and the line", err)
	}
}

func TestMissingFileIsNotFound(t *testing.T) {
	t.Parallel()
	_, err := config.Load[serverFile](filepath.Join(t.TempDir(), "none.yaml"))
	if !errors.Is(err, fs.ErrNotExist) || errs.Reason(err) != config.ReasonMissing {
		t.Errorf("error = %v, want one that is fs.ErrNotExist with reason %s", err, config.ReasonMissing)
	}
}

func TestEmptyFileMeansDefaults(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{"", "# nothing\n", "---\n"} {
		got, err := config.Parse[serverFile]("f.yaml", []byte(doc))
		if err != nil || got.Listen != ":7400" {
			t.Errorf("Parse(%q) = %+v, %v; want the defaults", doc, got, err)
		}
	}
}

func TestSaveIsReadBackAndKeepsItsMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sub", "f.yaml")
	in := serverFile{Listen: ":1", Raft: raftSection{ElectionTimeout: config.Duration(2 * time.Hour), Multiplier: 2}}
	for range 2 { // the second time replaces the first
		if err := config.Save(path, in, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := config.Load[serverFile](path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, *got, cmp.AllowUnexported(serverFile{})); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v; want 0600", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("folder holds %d entries, want only the file", len(entries))
	}
}

func TestEnvironmentOverridesTheFile(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"T_LISTEN":                "127.0.0.1:9",
		"T_RAFT_ELECTION_TIMEOUT": "3s",
		"T_RAFT_MULTIPLIER":       "5",
		"T_TAGS":                  "a, b",
		"T_DATA_DIR":              "/d",
		"T_VERBOSE":               "true",
		"T_LABELS":                "",
		"T_SERVICE_HOST":          "made up by a platform",
	}
	f := serverFile{Listen: "from file"}
	lookup := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	if err := config.Overlay(&f, "T_", lookup); err != nil {
		t.Fatal(err)
	}
	want := serverFile{
		common: common{DataDir: "/d"}, Listen: "127.0.0.1:9", Tags: []string{"a", "b"}, Verbose: true,
		Raft: raftSection{ElectionTimeout: config.Duration(3 * time.Second), Multiplier: 5},
	}
	if d := cmp.Diff(want, f, cmp.AllowUnexported(serverFile{})); d != "" {
		t.Errorf("after overlay (-want +got):\n%s", d)
	}
	for variable, text := range map[string]string{
		"T_VERBOSE": "yes", "T_RAFT_MULTIPLIER": "x", "T_RAFT_ELECTION_TIMEOUT": "9", "T_PEERS": "a", "T_LABELS": "a=b",
	} {
		lookup := func(k string) (string, bool) { return text, k == variable }
		err := config.Overlay(&serverFile{}, "T_", lookup)
		if err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%s=%s: error = %v, want one that names the variable", variable, text, err)
		}
	}
}

func TestClosest(t *testing.T) {
	t.Parallel()
	words := []string{"port", "namespace", "output", "workload", "for", "force", "electionTimeout"}
	for word, want := range map[string]string{
		"prot": "port", "namespase": "namespace", "ouput": "output", "work": "workload", "xyz": "",
		"forc": "force", "q": "", "": "", "election_timeout": "electionTimeout", "NAMESPACE": "namespace",
	} {
		if got := config.Closest(word, words); got != want {
			t.Errorf("Closest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestDurationIsWrittenShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		2 * time.Hour: "2h", 90 * time.Minute: "1h30m", 500 * time.Millisecond: "500ms", 0: "0s",
		10 * time.Second: "10s", time.Hour + time.Second: "1h0m1s", 20 * time.Minute: "20m",
	} {
		if got := config.Duration(d).String(); got != want {
			t.Errorf("Duration(%s) = %q, want %q", d, got, want)
		}
	}
}
