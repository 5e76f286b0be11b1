package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trivet/internal/config"
	"trivet/internal/errs"
	"trivet/node"
)

func loadConfig(t *testing.T, doc string) (*node.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return node.LoadConfig(path)
}

const minimal = "name: a\nservers: ['h:7400']\nbundle: b\nstateDir: /s\nworkloadsFile: w.yaml\n"

func TestConfigHasDefaultsAndItsOwnFolder(t *testing.T) {
	t.Parallel()
	c, err := loadConfig(t, minimal)
	if err != nil {
		t.Fatal(err)
	}
	if c.Admin != node.DefaultAdmin || c.Steal != node.StealAuto || c.Log.Level != "info" || c.Log.Format != "text" {
		t.Errorf("defaults are %+v", c)
	}
	if !filepath.IsAbs(c.Bundle) || filepath.Base(c.Bundle) != "b" || c.StateDir != "/s" || !filepath.IsAbs(c.WorkloadsFile) {
		t.Errorf("paths are %q, %q and %q", c.Bundle, c.StateDir, c.WorkloadsFile)
	}
}

func TestConfigProblemsAreNamed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ doc, want string }{
		"empty":            {"", "bundle: missing; name: missing; servers: at least one address is needed; stateDir: missing; workloadsFile: missing"},
		"unknown key":      {minimal + "stateDirr: x", `stateDirr: unknown key; did you mean "stateDir"?`},
		"server":           {strings.Replace(minimal, "h:7400", "h", 1), `servers[0]: "h" is not HOST:PORT`},
		"server port":      {strings.Replace(minimal, "h:7400", "h:0", 1), `servers[0]: "0" is not a port`},
		"server twice":     {strings.Replace(minimal, "'h:7400'", "'h:1', 'h:1'", 1), "servers[1]: h:1 is there twice"},
		"admin":            {minimal + "admin: here", `admin: "here" is not an address with a port`},
		"admin for anyone": {minimal + "admin: 0.0.0.0:7411", "admin: 0.0.0.0 is not a loopback address"},
		"steal":            {minimal + "steal: sklookup", `steal: "sklookup" is none of auto, sk_lookup, proxy; did you mean "sk_lookup"?`},
		"level":            {minimal + "log: {level: loud}", `log.level: "loud" is none of error, warn, info, debug, trace`},
		"format":           {minimal + "log: {format: xml}", `log.format: "xml" is none of text, json`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := loadConfig(t, tt.doc)
			e := errs.From(err)
			if e == nil || e.Reason != config.ReasonInvalid || e.Hint == "" {
				t.Fatalf("error is %v (%+v)", err, e)
			}
			if !strings.Contains(e.Message, tt.want) {
				t.Errorf("message is\n%s\nwant in it\n%s", e.Message, tt.want)
			}
		})
	}
}

func TestTrafficCommandNeedsAHolder(t *testing.T) {
	t.Parallel()
	// The test binary has no socket there.
	if f, err := node.InheritedSocket(); err == nil {
		f.Close()
		t.Skip("descriptor 3 of this test process is a socket")
	}
}
