package compose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"trivet/client"
	"trivet/cluster/engine"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/test/systest"
)

const (
	ready   = time.Minute
	servers = 3
	sample  = "http://172.31.77.21:8080/"
	// writing is how long writes may stand still while a server is lost.
	writing = 20 * time.Second
)

// composition is a running docker-compose.yml.
type composition struct {
	*docker
	project string
	compose []string
	dir     string
	addrs   [servers]string
	ops     [servers]operatorsvc.OperatorClient
	all     operatorsvc.OperatorClient
}

func start(t *testing.T) *composition {
	t.Helper()
	e := startEngine(t)
	c := &composition{docker: e, project: fmt.Sprintf("trivet%d", os.Getpid()), dir: t.TempDir()}
	c.compose = append(e.composeCommand(), "-p", c.project)
	image := c.project + ":test"
	c.env = append(c.env, "TRIVET_IMAGE="+image, "DOCKER_BUILDKIT=0")
	for i := range servers {
		port := freePort(t)
		c.addrs[i] = "127.0.0.1:" + port
		c.env = append(c.env, fmt.Sprintf("TRIVET_PORT_%d=%s", i+1, port))
	}
	c.image(image)
	t.Cleanup(func() {
		c.do("down", "-v", "-t", "5")
		c.run("docker", "rmi", "-f", image)
		if left := c.run("docker", "ps", "-aq", "--filter", "label=com.docker.compose.project="+c.project); left != "" {
			t.Errorf("containers are left: %s", left)
		}
	})
	c.do("up", "-d")
	c.identities()
	return c
}

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return port
}

// image builds the image from the binary under test, in a context of its own.
func (c *composition) image(name string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "context")
	for _, d := range []string{"bin", "deploy"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.run("cp", systest.Binary(c.t), filepath.Join(dir, "bin", "trivet"))
	c.run("cp", "-r", "deploy/rootfs", "deploy/Dockerfile", filepath.Join(dir, "deploy"))
	c.run("docker", "build", "-q", "-t", name, "-f", filepath.Join(dir, "deploy", "Dockerfile"), dir)
}

// do runs a verb of compose.
func (c *composition) do(args ...string) string {
	c.t.Helper()
	line := append(c.compose, args...)
	return c.run(line[0], line[1:]...)
}

func (c *composition) container(service string) string {
	c.t.Helper()
	return c.run("docker", "ps", "-aq", "--filter", "label=com.docker.compose.project="+c.project,
		"--filter", "label=com.docker.compose.service="+service)
}

// identities fetches the certificates and connects to each server and to all.
func (c *composition) identities() {
	c.t.Helper()
	pki := filepath.Join(c.dir, "pki")
	c.run("docker", "cp", c.container("server-1")+":/pki", pki)
	file := client.NewFile(filepath.Join(c.dir, "context.yaml"))
	operator := client.Context{Name: "operator", Servers: c.addrs[:], Bundle: filepath.Join(pki, "operators", "operator")}
	file.Put(client.Context{Name: "developer", Servers: c.addrs[:], Bundle: filepath.Join(pki, "clients", "developer"), Namespace: "default"})
	file.Put(operator)
	if err := file.Save(); err != nil {
		c.t.Fatal(err)
	}
	dial := func(addrs ...string) operatorsvc.OperatorClient {
		x := operator
		x.Servers = addrs
		var pool *client.Pool
		systest.Eventually(c.t, ready, "connect to "+strings.Join(addrs, ", "), func() (err error) {
			pool, err = client.Dial(systest.Deadline(c.t, 10*time.Second), x, client.Options{})
			return err
		})
		c.t.Cleanup(func() { pool.Close() })
		return operatorsvc.NewOperatorClient(pool)
	}
	for i, a := range c.addrs {
		c.ops[i] = dial(a)
	}
	c.all = dial(c.addrs[:]...)
}

// whole waits until every server is ready and all hold the same state.
func (c *composition) whole() {
	c.t.Helper()
	systest.Eventually(c.t, ready, "all servers are ready and agree", func() error {
		var first *operatorv1.DigestResponse
		for i, op := range c.ops {
			ctx := systest.Deadline(c.t, 5*time.Second)
			st, err := op.Status(ctx, &operatorv1.StatusRequest{})
			if err != nil {
				return err
			}
			if !st.GetReady() {
				return fmt.Errorf("server %d is not ready", i+1)
			}
			seen := metadata.AppendToOutgoingContext(ctx, engine.MetaRevision, engine.FormatRevision(first.GetRevision()))
			d, err := op.Digest(seen, &operatorv1.DigestRequest{})
			if err != nil {
				return err
			}
			if first != nil && (d.GetRevision() != first.GetRevision() || string(d.GetDigest()) != string(first.GetDigest())) {
				return fmt.Errorf("server %d is at revision %d, another at %d, or they differ", i+1, d.GetRevision(), first.GetRevision())
			}
			first = d
		}
		return nil
	})
}

// leader is the service that leads.
func (c *composition) leader() string {
	c.t.Helper()
	st, err := c.all.Status(systest.Deadline(c.t, 10*time.Second), &operatorv1.StatusRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return st.GetLeader()
}

// writes checks that a number of writes is acknowledged in time, and remembers
// them.
func (c *composition) writes(acked map[string]bool, n int, when string) {
	c.t.Helper()
	for range n {
		key := fmt.Sprintf("write-%04d", len(acked))
		systest.Eventually(c.t, writing, "a write "+when, func() error {
			ctx, cancel := context.WithTimeout(c.t.Context(), 6*time.Second)
			defer cancel()
			_, err := c.all.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: key, Value: []byte(when)})
			return err
		})
		acked[key] = true
	}
}

// answeredBy waits until the sample's visitors are answered by somebody.
func (c *composition) answeredBy(who, when string) {
	c.t.Helper()
	visitor := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	systest.Eventually(c.t, ready, "the sample is answered by "+who+" "+when, func() error {
		resp, err := visitor.Get(sample)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if !strings.Contains(string(body), who) {
			return fmt.Errorf("answered %q", body)
		}
		return nil
	})
}

// intercept runs `trivet intercept create` until the test ends.
func (c *composition) intercept() {
	c.t.Helper()
	local := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the laptop") }))
	c.t.Cleanup(local.Close)
	_, port, _ := net.SplitHostPort(local.Listener.Addr().String())
	log, err := os.Create(filepath.Join(c.dir, "intercept.log"))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(systest.Binary(c.t), "--context", "developer", "intercept", "create", "mine", "--workload", "sample", "--port", port+":http")
	cmd.Env = append(os.Environ(), "TRIVET_CONFIG="+filepath.Join(c.dir, "context.yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			out, _ := os.ReadFile(log.Name())
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 130 {
				c.t.Errorf("the intercept ended with %v:\n%s", err, tail(out))
			}
		}
	})
}

// TestComposition is the chaos scenario of the composition.
func TestComposition(t *testing.T) {
	c := start(t)
	c.whole()
	c.answeredBy("sample app", "at first")
	c.intercept()
	c.answeredBy("the laptop", "once it is intercepted")
	acked := make(map[string]bool)
	c.writes(acked, 20, "while all is well")

	killed := c.leader()
	c.run("docker", "kill", "-s", "KILL", c.container(killed))
	c.writes(acked, 20, "while "+killed+", which led, is killed")
	c.answeredBy("the laptop", "while the leader is killed")
	c.run("docker", "start", c.container(killed))
	c.whole()

	paused := c.leader()
	c.run("docker", "pause", c.container(paused))
	c.writes(acked, 20, "while "+paused+", which led, is paused")
	c.answeredBy("the laptop", "while the leader is paused")
	c.run("docker", "unpause", c.container(paused))
	c.whole()

	cut := c.leader()
	network := c.project + "_trivet"
	ip := "172.31.77.1" + strings.TrimPrefix(cut, "server-")
	c.run("docker", "network", "disconnect", network, c.container(cut))
	c.writes(acked, 20, "while "+cut+", which led, is cut off")
	c.answeredBy("the laptop", "while the leader is cut off")
	c.run("docker", "network", "connect", "--ip", ip, "--alias", cut, network, c.container(cut))
	c.whole()

	c.answeredBy("the laptop", "at the end")
	for i, op := range c.ops {
		ctx := metadata.AppendToOutgoingContext(systest.Deadline(t, ready), engine.MetaConsistency, "linearizable")
		for key := range acked {
			if _, err := op.GetConfig(ctx, &operatorv1.GetConfigRequest{Key: key}); err != nil {
				t.Fatalf("server %d lost the acknowledged %s: %v", i+1, key, err)
			}
		}
	}
	list, err := c.all.ListIntercepts(systest.Deadline(t, ready), &operatorv1.ListInterceptsRequest{})
	if err != nil || len(list.GetIntercepts()) != 1 || list.GetIntercepts()[0].GetDisposition() != "ACTIVE" {
		t.Errorf("intercepts at the end: %v, %v", list.GetIntercepts(), err)
	}
}
