package client

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"

	"trivet/client/clienttest"
	"trivet/internal/errs"
)

func env(pairs ...string) func(string) string {
	return func(key string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == key {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestContextFileIsFound(t *testing.T) {
	t.Parallel()
	for want, getenv := range map[string]func(string) string{
		"/x/context.yaml":               env("TRIVET_CONFIG", "/x/context.yaml", "HOME", "/h"),
		"/c/trivet/config.yaml":         env("XDG_CONFIG_HOME", "/c", "HOME", "/h"),
		"/h/.config/trivet/config.yaml": env("XDG_CONFIG_HOME", "relative", "HOME", "/h"),
	} {
		if got, err := DefaultPath(getenv); err != nil || got != want {
			t.Errorf("DefaultPath = %q, %v; want %q", got, err, want)
		}
	}
	if _, err := DefaultPath(env()); errs.Reason(err) != ReasonNoContext {
		t.Errorf("without a home: %v", err)
	}
}

func TestContextFileRoundTrip(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sub", "config.yaml")
	f := NewFile(path)
	f.Put(Context{Name: "a", Servers: []string{"127.0.0.1:1"}, Bundle: "/b"})
	f.Put(Context{Name: "b", Servers: []string{"127.0.0.1:2", "[::1]:3"}, CA: "ca", Certificate: "c", Key: "k", Namespace: "n"})
	if err := f.Use("b"); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v; want 0600", info.Mode(), err)
	}
	got, err := LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(f, got, cmpopts.IgnoreUnexported(File{})); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
	if got.Warning() != "" {
		t.Errorf("warning = %q", got.Warning())
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err = LoadFile(path); err != nil || !strings.Contains(got.Warning(), "chmod 600") {
		t.Errorf("a private key that all may read: warning %q, %v", got.Warning(), err)
	}
}

func TestRelativeBundleCountsFromTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "context.yaml")
	text := "contexts: [{name: a, servers: ['127.0.0.1:1'], bundle: pki/client}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The only context needs no choosing.
	c, err := f.Get("")
	if want := filepath.Join(dir, "pki/client"); err != nil || c.Bundle != want {
		t.Errorf("bundle = %q, %v; want %q", c.Bundle, err, want)
	}
}

func TestWrongContextsAreExplained(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	load := func(text string) (*File, error) {
		path := filepath.Join(dir, "f.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return LoadFile(path)
	}
	if _, err := LoadFile(filepath.Join(dir, "none")); errs.Code(err) != codes.NotFound || errs.From(err).Hint == "" {
		t.Errorf("no file: %v", err)
	}
	if _, err := load("contexts: [{nam: a}]"); err == nil || !strings.Contains(err.Error(), `contexts[0].nam: unknown key; did you mean "name"?`) {
		t.Errorf("misspelt key: %v", err)
	}
	for _, text := range []string{"contexts: [{servers: []}]", "contexts: [{name: a}, {name: a}]"} {
		if _, err := load(text); errs.Reason(err) != ReasonBadContext {
			t.Errorf("%s: %v", text, err)
		}
	}
	f, err := load("contexts: [{name: staging}, {name: production}]")
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Get("stagin")
	if e := errs.From(err); e.Code != codes.NotFound || !strings.Contains(e.Hint, `did you mean "staging"?`) {
		t.Errorf("misspelt name: %v, hint %q", err, e.Hint)
	}
	if _, err := f.Get(""); errs.Code(err) != codes.NotFound {
		t.Errorf("none is current: %v", err)
	}
	if err := f.Use("x"); errs.Code(err) != codes.NotFound {
		t.Errorf("use of an unknown one: %v", err)
	}
	good := Context{Name: "c", Servers: []string{"127.0.0.1:1"}, Bundle: "/b"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Context){
		"no servers":  func(c *Context) { c.Servers = nil },
		"no port":     func(c *Context) { c.Servers = []string{"localhost"} },
		"no host":     func(c *Context) { c.Servers = []string{":7400"} },
		"no identity": func(c *Context) { c.Bundle = "" },
		"two":         func(c *Context) { c.CA = "x" },
		"half inline": func(c *Context) { c.Bundle, c.CA = "", "x" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); errs.Reason(err) != ReasonBadContext {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInlineIdentityWorks(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	c := contextOf(f)
	for file, field := range map[string]*string{"ca.crt": &c.CA, "tls.crt": &c.Certificate, "tls.key": &c.Key} {
		data, err := os.ReadFile(filepath.Join(f.Bundle, file))
		if err != nil {
			t.Fatal(err)
		}
		*field = string(data)
	}
	c.Bundle = ""
	p, err := Dial(t.Context(), c, fast())
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

func TestInstallIDStays(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "sub")
	ids := make(chan string, 8)
	for range cap(ids) {
		go func() {
			id, err := InstallID(dir)
			if err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first || id == "" {
			t.Errorf("ids %q and %q differ", first, id)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "install-id"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := InstallID(dir)
	if again, _ := InstallID(dir); err != nil || id != again || id == first {
		t.Errorf("after damage: %q, %q, %v", id, again, err)
	}
	if name := UserName(os.Getenv); !strings.Contains(name, "@") {
		t.Errorf("user name = %q", name)
	}
}
