package systest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
)

// Nginx is a running nginx that serves the files of a directory, and takes
// files below /upload/ by PUT.
type Nginx struct {
	*Process
	// Root is the directory of what it serves; index.html is its name.
	Root string
	Port int
}

// nginxConf has one worker: what a test measures is not nginx's.
const nginxConf = `daemon off;
user root;
worker_processes 1;
pid %[1]s/nginx.pid;
error_log stderr warn;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  keepalive_requests 10000;
  client_max_body_size 0;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
%[2]s
    root %[1]s/html;
    location /upload/ { dav_methods PUT; }
  }
}
`

// StartNginx starts nginx, in a network namespace or, with nil, beside the
// test, and waits until it answers. dir is made for it; name is what
// index.html says.
func StartNginx(t testing.TB, ns *netnstest.Namespace, dir, name string, listen ...netip.AddrPort) *Nginx {
	t.Helper()
	n := &Nginx{Root: filepath.Join(dir, "html"), Port: int(listen[0].Port())}
	if err := os.MkdirAll(filepath.Join(n.Root, "upload"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.Put(t, "index.html", []byte(name+"\n"))
	var lines strings.Builder
	for _, l := range listen {
		only := ""
		if l.Addr().Is6() {
			only = " ipv6only=on"
		}
		fmt.Fprintf(&lines, "    listen %s%s;\n", l, only)
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Process = Launch(t, Command{
		Name: "nginx-" + name, Path: NGINX.Path(t), Args: []string{"-c", conf, "-p", dir, "-e", "stderr"}, Net: ns,
	})
	ctx := Deadline(t, 10*time.Second)
	err := Poll(ctx, func() error {
		if !n.Running() {
			t.Fatalf("nginx ended: %s", n.ErrOut())
		}
		conn, err := dialFrom(ctx, ns, netip.AddrPortFrom(loopback(listen[0].Addr()), listen[0].Port()))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Fatalf("nginx does not answer: %v; %s", err, n.ErrOut())
	}
	return n
}

// loopback is where an unspecified address is reached from nearby.
func loopback(a netip.Addr) netip.Addr {
	switch {
	case !a.IsUnspecified():
		return a
	case a.Is6():
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// dialFrom connects from a namespace; nil is the test's own.
func dialFrom(ctx context.Context, ns *netnstest.Namespace, to netip.AddrPort) (net.Conn, error) {
	if ns == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	}
	return netns.Dial(ctx, ns.NS, "tcp", to.String(), nil)
}

// Put makes a file to be served.
func (n *Nginx) Put(t testing.TB, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.Root, name), content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// FreePort is a TCP port on IPv4 loopback that nobody uses right now.
func FreePort(t testing.TB) int {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// StartLocal starts the nginx on the developer's machine that an intercept
// brings its traffic to; its name is Local.
func StartLocal(t testing.TB) *Nginx {
	t.Helper()
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(FreePort(t)))
	return StartNginx(t, nil, t.TempDir(), Local, at)
}
