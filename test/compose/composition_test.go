package compose

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	servers = 3
	// settle is how long the composition may take to come to rest.
	settle = time.Minute
	// askTime bounds one question to one server.
	askTime = 5 * time.Second
)

// composition is a docker-compose.yml that is up.
type composition struct {
	*docker
	project string
	command []string
	dir     string
	// contexts is the context file, with the contexts operator and developer.
	contexts string
	// visit is the address of the sample as a visitor dials it.
	visit string
	// ops ask one server each, all asks whichever answers.
	ops [servers]operatorsvc.OperatorClient
	all operatorsvc.OperatorClient
}

// up builds the image and brings the composition up. It is down again, and
// nothing is left of it, when the test ends.
func up(t *testing.T) *composition {
	t.Helper()
	c := &composition{docker: startDocker(t), project: fmt.Sprintf("trivet%d", os.Getpid()), dir: t.TempDir()}
	c.command = append(c.compose(), "-p", c.project)
	image := c.project + ":test"
	c.env = append(c.env, "TRIVET_IMAGE="+image, "DOCKER_BUILDKIT=0", "COMPOSE="+strings.Join(c.command, " "))
	for _, name := range []string{"TRIVET_PORT_1", "TRIVET_PORT_2", "TRIVET_PORT_3", "TRIVET_SAMPLE_PORT", "TRIVET_PROXY_PORT"} {
		c.env = append(c.env, name+"="+c.freePort())
	}
	c.image(image)
	t.Cleanup(func() { c.down(image) })
	c.do("up", "-d")
	c.connect()
	return c
}

// image builds the image of the binary under test, in a context of its own.
func (c *composition) image(name string) {
	c.t.Helper()
	for _, d := range []string{"bin", "deploy"} {
		if err := os.MkdirAll(filepath.Join(c.dir, "image", d), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	in := func(path string) string { return filepath.Join(c.dir, "image", path) }
	c.run("cp", systest.Binary(c.t), in("bin/trivet"))
	c.run("cp", "-r", "deploy/rootfs", "deploy/Dockerfile", in("deploy"))
	c.run("docker", "build", "--quiet", "--tag", name, "--file", in("deploy/Dockerfile"), in(""))
}

// down takes the composition down and checks that nothing is left.
func (c *composition) down(image string) {
	if c.t.Failed() {
		out, err := c.verb("logs", "--no-color", "--tail", "30")
		c.t.Log(out, err)
	}
	if _, err := c.verb("down", "-v"); err != nil {
		c.t.Error(err)
	}
	for _, list := range [][]string{{"ps", "-a"}, {"volume", "ls"}, {"network", "ls"}} {
		args := append(list, "--quiet", "--filter", "label=com.docker.compose.project="+c.project)
		if left, err := c.try(commandTime, "docker", args...); err != nil || left != "" {
			c.t.Errorf("docker %s, after down: %q, %v", strings.Join(list, " "), left, err)
		}
	}
	if _, err := c.try(commandTime, "docker", "rmi", "--force", image); err != nil {
		c.t.Error(err)
	}
}

// verb runs a verb of compose.
func (c *composition) verb(args ...string) (string, error) {
	line := slices.Concat(c.command, args)
	return c.try(commandTime, line[0], line[1:]...)
}

// do runs a verb of compose that has to work.
func (c *composition) do(args ...string) {
	c.t.Helper()
	if _, err := c.verb(args...); err != nil {
		c.t.Fatal(err)
	}
}

// container is the id of a service's container.
func (c *composition) container(service string) string {
	c.t.Helper()
	return c.run("docker", "ps", "-aq", "--filter", "label=com.docker.compose.project="+c.project,
		"--filter", "label=com.docker.compose.service="+service)
}

// variable is a variable of the composition.
func (c *composition) variable(name string) string {
	for _, pair := range c.env {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	c.t.Fatalf("%s is not set", name)
	return ""
}

// connect makes the contexts as a user does, and connects to each server and to
// all.
func (c *composition) connect() {
	c.t.Helper()
	c.run("bash", "deploy/context.sh", c.dir)
	c.contexts = filepath.Join(c.dir, "context.yaml")
	file, err := client.LoadFile(c.contexts)
	if err != nil {
		c.t.Fatal(err)
	}
	operator, err := file.Get("operator")
	if err != nil {
		c.t.Fatal(err)
	}
	operator.Bundle = filepath.Join(c.dir, "operator")
	dial := func(addresses ...string) operatorsvc.OperatorClient {
		x := operator
		x.Servers = addresses
		var pool *client.Pool
		systest.Eventually(c.t, settle, "connect to "+strings.Join(addresses, ", "), func() (err error) {
			pool, err = client.Dial(systest.Deadline(c.t, askTime), x, client.Options{Dialer: c.dial})
			return err
		})
		c.t.Cleanup(pool.Close)
		return operatorsvc.NewOperatorClient(pool)
	}
	for i, address := range operator.Servers {
		c.ops[i] = dial(address)
	}
	c.all = dial(operator.Servers...)
	c.ready("at first")
	c.meetNode()
}

// meetNode waits for the node and finds out where visitors have to go.
func (c *composition) meetNode() {
	c.t.Helper()
	systest.Eventually(c.t, settle, "the node is connected", func() error {
		r, err := c.all.ListNodes(systest.Deadline(c.t, askTime), &operatorv1.ListNodesRequest{})
		if err != nil {
			return err
		}
		if len(r.GetNodes()) != 1 || !r.GetNodes()[0].GetConnected() {
			return fmt.Errorf("nodes: %v", r.GetNodes())
		}
		n := r.GetNodes()[0]
		port := c.variable("TRIVET_SAMPLE_PORT")
		if n.GetStealBackend() != "sk_lookup" {
			port = c.variable("TRIVET_PROXY_PORT")
		}
		c.visit = "127.0.0.1:" + port
		c.t.Logf("the node uses %s %s", n.GetStealBackend(), n.GetStealReason())
		return nil
	})
}

// ready waits until every server says that it is ready.
func (c *composition) ready(when string) {
	c.t.Helper()
	systest.Eventually(c.t, settle, "all servers are ready "+when, func() error {
		for i, op := range c.ops {
			st, err := op.Status(systest.Deadline(c.t, askTime), &operatorv1.StatusRequest{})
			if err != nil {
				return err
			}
			if !st.GetReady() {
				return fmt.Errorf("server-%d is not", i+1)
			}
		}
		return nil
	})
}

// agree waits until all servers show one state.
func (c *composition) agree() {
	c.t.Helper()
	systest.Eventually(c.t, settle, "all servers hold one state", func() error {
		var first *operatorv1.DigestResponse
		for i, op := range c.ops {
			ctx := metadata.AppendToOutgoingContext(systest.Deadline(c.t, askTime), engine.MetaRevision, engine.FormatRevision(first.GetRevision()))
			d, err := op.Digest(ctx, &operatorv1.DigestRequest{})
			if err != nil {
				return err
			}
			if first != nil && (d.GetRevision() != first.GetRevision() || string(d.GetDigest()) != string(first.GetDigest())) {
				return fmt.Errorf("server-%d: revision %d, digest %x; server-1: %d, %x",
					i+1, d.GetRevision(), d.GetDigest(), first.GetRevision(), first.GetDigest())
			}
			first = d
		}
		return nil
	})
}

// leader is the service that leads, other than one.
func (c *composition) leader(other string) string {
	c.t.Helper()
	var leader string
	systest.Eventually(c.t, settle, "a server other than "+other+" leads", func() error {
		st, err := c.all.Status(systest.Deadline(c.t, askTime), &operatorv1.StatusRequest{})
		if err != nil {
			return err
		}
		if leader = st.GetLeader(); leader == "" || leader == other {
			return fmt.Errorf("it is %q", leader)
		}
		return nil
	})
	return leader
}

// sessions are the ids of all sessions.
func (c *composition) sessions() []string {
	c.t.Helper()
	r, err := c.all.ListSessions(systest.Deadline(c.t, settle), &operatorv1.ListSessionsRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, s := range r.GetSessions() {
		out = append(out, s.GetKind()+" "+s.GetId())
	}
	slices.Sort(out)
	return out
}
