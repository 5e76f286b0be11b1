package system

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"trivet/test/systest"
)

const (
	big    = 256 << 20
	medium = 64 << 20
	small  = 50 // files, not bytes
	// transfer is how long a big file may take on a busy machine.
	transfer = 60 * time.Second
)

// TestRealTraffic is the main job on real input: what visitors of an nginx get
// before, during and after an intercept by another nginx.
func TestRealTraffic(t *testing.T) {
	systest.Require(t, systest.NGINX, systest.Curl)
	c := systest.Start(t)
	local := systest.StartLocal(t)
	bigSum := writeRandom(t, filepath.Join(local.Root, "big"), big)
	smallSums := make([]string, small)
	for i := range smallSums {
		smallSums[i] = writeRandom(t, filepath.Join(local.Root, fmt.Sprintf("small-%d", i)), int64(i*1024+i+1))
	}

	answeredBy(t, c, systest.App)
	early4, early6 := open(t, c.V4), open(t, c.V6)
	ask(t, early4, systest.App)

	i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port})
	answeredBy(t, c, systest.Local)
	t.Run("established connections stay with the app", func(t *testing.T) {
		ask(t, early4, systest.App)
		ask(t, early6, systest.App)
	})
	for family, v := range map[string]*systest.Visitor{"IPv4": c.V4, "IPv6": c.V6} {
		t.Run("keep-alive over "+family, func(t *testing.T) { keepAlive(t, c, v) })
	}
	t.Run("big download", func(t *testing.T) { download(t, c, c.V4, i, "big", big, bigSum) })
	t.Run("big upload", func(t *testing.T) { upload(t, c, c.V6, i, local, "big", big, bigSum) })
	t.Run("parallel downloads", func(t *testing.T) { parallel(t, c, smallSums) })

	late := open(t, c.V4)
	ask(t, late, systest.Local)
	i.Interrupt(t)
	ends(t, late, settle)
	answeredBy(t, c, systest.App)
	ask(t, early4, systest.App)
	ask(t, early6, systest.App)

	t.Run("between two servers", func(t *testing.T) {
		sum := writeRandom(t, filepath.Join(local.Root, "medium"), medium)
		i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port, Attach: 1})
		wantAttached(t, c, i)
		download(t, c, c.V6, i, "medium", medium, sum)
		upload(t, c, c.V4, i, local, "medium", medium, sum)
		i.Interrupt(t)
	})
	answeredBy(t, c, systest.App)
	c.WantSameState(t)
}

// wantAttached wants the client's streams on the second server and the agent's
// on the first, so that what lies between them is the servers' to carry.
func wantAttached(t *testing.T, c *systest.Cluster, i *systest.Intercept) {
	t.Helper()
	systest.Eventually(t, settle, "the two ends are on different servers", func() error {
		for _, s := range c.Sessions(t, 2) {
			want := c.Dev.Servers[0].Name
			if s.ID == i.Session {
				want = c.Dev.Servers[1].Name
			}
			if !slices.Equal(s.Attached, []string{want}) {
				return fmt.Errorf("session %s (%s) is attached to %v, want %s", s.ID, s.Kind, s.Attached, want)
			}
		}
		return nil
	})
}

// download has curl fetch a file of the local process.
func download(t *testing.T, c *systest.Cluster, v *systest.Visitor, i *systest.Intercept, name string, size int64, sum string) {
	t.Helper()
	from := i.Mark()
	r := c.Curl(systest.Deadline(t, transfer), t, "--fail", v.URL(name))
	if r.Code != systest.CurlOK || r.Size != size || r.SHA256 != sum {
		t.Fatalf("curl: exit %d, %d bytes with the sum %s, want %d with %s: %s", r.Code, r.Size, r.SHA256, size, sum, r.Err)
	}
	wantCounted(t, i, from, func(e systest.Event) bool { return int64(e.BytesOut) >= size })
	t.Logf("down %.0f MiB/s", float64(size)/r.Took.Seconds()/(1<<20))
}

// wantCounted wants a connection to be shown as closed that has moved enough;
// others may be shown before it.
func wantCounted(t *testing.T, i *systest.Intercept, from int, enough func(systest.Event) bool) {
	t.Helper()
	systest.Eventually(t, settle, "the connection is counted", func() error {
		closed := i.Events("closed", from)
		if !slices.ContainsFunc(closed, enough) {
			return fmt.Errorf("closed were %+v", closed)
		}
		return nil
	})
}

// upload has curl send a file of that name to the local process.
func upload(t *testing.T, c *systest.Cluster, v *systest.Visitor, i *systest.Intercept, local *systest.Nginx, name string, size int64, sum string) {
	t.Helper()
	from := i.Mark()
	r := c.Curl(systest.Deadline(t, transfer), t, "--fail", "-T", filepath.Join(local.Root, name), v.URL("upload/"+name))
	if r.Code != systest.CurlOK {
		t.Fatalf("curl: exit %d: %s", r.Code, r.Err)
	}
	if got := sumFile(t, filepath.Join(local.Root, "upload", name)); got != sum {
		t.Errorf("what was uploaded has the sum %s, want %s", got, sum)
	}
	wantCounted(t, i, from, func(e systest.Event) bool { return int64(e.BytesIn) >= size })
	t.Logf("up %.0f MiB/s", float64(size)/r.Took.Seconds()/(1<<20))
}

// answeredBy wants new connections over both families answered by one.
func answeredBy(t *testing.T, c *systest.Cluster, by string) {
	t.Helper()
	if err := systest.WantAll(systest.Together(t.Context(), 20, c.V4, c.V6), by); err != nil {
		t.Fatal(err)
	}
}

// open opens a connection that lasts as long as the test.
func open(t *testing.T, v *systest.Visitor) *systest.Conn {
	t.Helper()
	conn, err := v.Dial(systest.Deadline(t, settle))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func ask(t *testing.T, conn *systest.Conn, by string) {
	t.Helper()
	got, err := conn.Ask(systest.Deadline(t, settle))
	if err != nil || got != by {
		t.Fatalf("a request on an open connection was answered by %q (error: %v), want %q", got, err, by)
	}
}

// ends wants a connection on which nothing is under way to be ended by the
// other side, and returns how: io.EOF or a reset.
func ends(t *testing.T, conn *systest.Conn, within time.Duration) error {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	n, err := conn.Read(make([]byte, 1))
	if n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection did not end within %s: %d bytes, %v", within, n, err)
	}
	return err
}

// keepAlive has curl send several requests, the first of which opens the
// connection for all.
func keepAlive(t *testing.T, c *systest.Cluster, v *systest.Visitor) {
	const requests = 5
	args := []string{"--fail", "--http1.1", "-w", "%{http_version} %{num_connects}\n"}
	for range requests {
		args = append(args, v.URL("index.html"))
	}
	r := c.Curl(systest.Deadline(t, settle), t, args...)
	first, more := systest.Local+"\n1.1 1\n", systest.Local+"\n1.1 0\n"
	if want := first + strings.Repeat(more, requests-1); r.Code != systest.CurlOK || r.Out != want {
		t.Errorf("curl: exit %d, %s; it printed %q, want %q", r.Code, r.Err, r.Out, want)
	}
}

// parallel downloads all small files at the same time, each on a connection of
// its own.
func parallel(t *testing.T, c *systest.Cluster, sums []string) {
	dir := t.TempDir()
	args := []string{"--fail", "--parallel", "--parallel-immediate", "--parallel-max", fmt.Sprint(len(sums)), "-w", "%{num_connects}\n"}
	for i := range sums {
		v := c.V4
		if i%2 == 1 {
			v = c.V6
		}
		args = append(args, "-o", filepath.Join(dir, fmt.Sprint(i)), v.URL(fmt.Sprintf("small-%d", i)))
	}
	r := c.Curl(systest.Deadline(t, settle), t, args...)
	if want := strings.Repeat("1\n", len(sums)); r.Code != systest.CurlOK || r.Out != want {
		t.Errorf("curl: exit %d, %s; connections %q", r.Code, r.Err, strings.Fields(r.Out))
	}
	for i, want := range sums {
		if got := sumFile(t, filepath.Join(dir, fmt.Sprint(i))); got != want {
			t.Errorf("small-%d has the sum %s, want %s", i, got, want)
		}
	}
}

// writeRandom writes bytes that no compression and no mistake of a block's
// place survives, and returns their sum.
func writeRandom(t *testing.T, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	var seed [32]byte
	copy(seed[:], filepath.Base(path))
	if _, err := io.CopyN(io.MultiWriter(f, sum), rand.NewChaCha8(seed), size); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func sumFile(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
