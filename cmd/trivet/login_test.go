package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"trivet/client"
	"trivet/cluster/clustertest"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// realRig runs command lines against real servers.
type realRig struct {
	*clustertest.Cluster
	t    *testing.T
	home string
}

func newRealRig(t *testing.T) *realRig {
	t.Helper()
	r := &realRig{Cluster: clustertest.Start(t, 1, nil), t: t, home: t.TempDir()}
	r.bundle(pki.RoleOperator, "olga", "operator", time.Hour, 0)
	file := client.NewFile(r.config())
	file.Put(client.Context{Name: "op", Servers: []string{r.Servers[0].Address}, Bundle: filepath.Join(r.home, "operator")})
	if err := file.Save(); err != nil {
		t.Fatal(err)
	}
	op := operatorsvc.NewOperatorClient(r.Conn(r.Servers[0], pki.RoleOperator, "olga"))
	clustertest.Eventually(t, "an issuing CA in the state", func() bool {
		a, err := op.GetAuthority(t.Context(), new(operatorv1.GetAuthorityRequest))
		return err == nil && len(a.GetIssuers()) > 0
	})
	return r
}

func (r *realRig) config() string { return filepath.Join(r.home, "config.yaml") }

// bundle writes a certificate that ended a while ago.
func (r *realRig) bundle(role pki.Role, name, dir string, ttl, ended time.Duration) {
	r.t.Helper()
	b, err := r.CA.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: name}, TTL: ttl}, time.Now().Add(-ttl-ended+time.Minute))
	if ended == 0 {
		b, err = r.CA.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: name}, TTL: ttl}, time.Now())
	}
	if err == nil {
		err = b.Write(filepath.Join(r.home, dir))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *realRig) run(stdin string, args ...string) (out, errOut string, code int) {
	r.t.Helper()
	var o, e bytes.Buffer
	env := map[string]string{"TRIVET_CONFIG": r.config(), "HOME": r.home, "USER": "alice"}
	a := NewApp(strings.NewReader(stdin), &o, &e, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	code = a.Run(ctx, args, extraCommands...)
	return o.String(), e.String(), code
}

func (r *realRig) ok(args ...string) string {
	r.t.Helper()
	out, errOut, code := r.run("", args...)
	if code != 0 {
		r.t.Fatalf("trivet %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errOut)
	}
	return out
}

// TestLogin: an operator makes a token, a developer logs in with it.
func TestLogin(t *testing.T) {
	r := newRealRig(t)
	token := strings.TrimSpace(r.ok("token", "create", "--role", "client", "--name", "a*"))
	if !strings.HasPrefix(token, "trivet1.") || strings.ContainsAny(token, " \n") {
		t.Fatalf("the token is %q", token)
	}
	secret := strings.Split(token, ".")[2]
	out, errOut, code := r.run(token+"\n", "login", "--token", "-", "--server", r.Servers[0].Address)
	if code != 0 || !strings.Contains(errOut, "you are spiffe://test/client/alice until") {
		t.Fatalf("exit %d: %s%s", code, out, errOut)
	}
	f, err := client.LoadFile(r.config())
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Get("")
	if err != nil || c.Name != "test" || len(c.Servers) != 1 {
		t.Fatalf("got %+v, %v", c, err)
	}
	for _, path := range []string{r.config(), filepath.Join(c.Bundle, pki.KeyFile), filepath.Join(c.Bundle, pki.ChainFile)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if out := r.ok("status"); !strings.Contains(out, "server-1") {
		t.Errorf("status says %s", out)
	}
	if out := r.ok("token", "list", "--context", "op"); !strings.Contains(out, "used") || strings.Contains(out, secret) {
		t.Errorf("token list says %s", out)
	}
	if out, errOut, code := r.run("", "login", "--token", token, "--server", r.Servers[0].Address); code != 4 || !strings.Contains(errOut, "was used by another key") {
		t.Errorf("a used token: exit %d, %s%s", code, out, errOut)
	}
	// Another login takes the context over and clears the old bundle away.
	token = strings.TrimSpace(r.ok("token", "create", "--role", "client", "--name", "alice", "--context", "op"))
	r.ok("login", "--token", token)
	if _, err := os.Stat(c.Bundle); !os.IsNotExist(err) {
		t.Errorf("the old bundle is still there: %v", err)
	}
	r.ok("identity", "deny", "client/alice", "--reason", "left", "--context", "op")
	if out, errOut, code := r.run("", "status"); code != 4 || !strings.Contains(errOut, "left") {
		t.Errorf("denied: exit %d, %s%s", code, out, errOut)
	}
	if out := r.ok("identity", "list", "--context", "op"); !strings.Contains(out, "spiffe://test/client/alice") {
		t.Errorf("identity list says %s", out)
	}
	r.ok("identity", "allow", "client/alice", "--context", "op")
	r.ok("status")
}

// TestSleptLaptop: a certificate that ended lately is renewed by the way.
func TestSleptLaptop(t *testing.T) {
	r := newRealRig(t)
	r.bundle(pki.RoleClient, "alice", "slept", 12*time.Hour, 48*time.Hour)
	r.bundle(pki.RoleClient, "alice", "gone", 12*time.Hour, 100*time.Hour)
	f, err := client.LoadFile(r.config())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"slept", "gone"} {
		f.Put(client.Context{Name: name, Servers: []string{r.Servers[0].Address}, Bundle: filepath.Join(r.home, name)})
	}
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	r.ok("status", "--context", "slept")
	b, err := pki.LoadBundle(filepath.Join(r.home, "slept"))
	if err != nil || time.Until(b.NotAfter) < 11*time.Hour {
		t.Errorf("it was not renewed on disk: %v, %v", b.NotAfter, err)
	}
	if _, errOut, code := r.run("", "status", "--context", "gone"); code != 4 || !strings.Contains(errOut, "trivet login --token") {
		t.Errorf("exit %d, %s", code, errOut)
	}
}

func TestCAShowAndRotate(t *testing.T) {
	r := newRealRig(t)
	before := r.ok("ca", "show", "--dir", filepath.Join(r.Dir, "ca"))
	if !strings.Contains(before, "issuing CA") || strings.Count(r.ok("ca", "show"), "issuing CA") != 1 {
		t.Errorf("show says %s", before)
	}
	r.ok("ca", "rotate", "--dir", filepath.Join(r.Dir, "ca"))
	if after := r.ok("ca", "show", "--dir", filepath.Join(r.Dir, "ca")); after == before {
		t.Errorf("the directory still has the old one: %s", after)
	}
	if out := r.ok("ca", "show"); strings.Count(out, "retired") != 1 || strings.Count(out, "issuing CA") != 2 {
		t.Errorf("the cluster shows %s", out)
	}
	r.ok("ca", "rotate", "--seal-key")
	if out := r.ok("ca", "show"); strings.Count(out, "seal key") != 2 || strings.Count(out, "kept") != 1 {
		t.Errorf("the cluster shows %s", out)
	}
	if _, errOut, code := r.run("", "ca", "rotate"); code != 2 || !strings.Contains(errOut, "--seal-key") {
		t.Errorf("exit %d, %s", code, errOut)
	}
	// New certificates come from the new CA, with the new keys.
	r.ok("login", "--token", strings.TrimSpace(r.ok("token", "create", "--role", "viewer", "--name", "vera")))
}

// TestServersOfANewContext: the cluster may call itself by names that mean
// nothing where the client is.
func TestServersOfANewContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	open, gone, asked := ln.Addr().String(), closed.Addr().String(), []string{"forwarded:7400"}
	for _, tc := range []struct{ named, want []string }{
		{nil, asked},
		{[]string{gone, "server.invalid:7400"}, asked},
		{[]string{gone, open}, []string{gone, open}},
	} {
		if got := reachable(t.Context(), asked, tc.named); !slices.Equal(got, tc.want) {
			t.Errorf("of %v: %v, want %v", tc.named, got, tc.want)
		}
	}
}
