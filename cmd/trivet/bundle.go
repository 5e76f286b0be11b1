package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// bundleTime is what one server's part may take besides its CPU profile.
const bundleTime = 30 * time.Second

// maxBundleFile bounds one file of a server's part.
const maxBundleFile = 64 << 20

// bundleView is what was collected.
type bundleView struct {
	File    string            `json:"file"`
	Bytes   int64             `json:"bytes"`
	Servers []string          `json:"servers"`
	Missing map[string]string `json:"missing,omitempty"`
}

func newBundleCmd(a *App) *cobra.Command {
	var file string
	var cpu time.Duration
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Collect a support bundle of all servers",
		Long: `Collect logs, configuration, metrics, health and profiles of all servers that
answer into one .tar.gz. It holds no rows of the state, no environments and no
keys; names of servers, addresses and whatever the logs say are in it.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.timeoutOr(cmd.Context(), cpu+2*bundleTime)
			defer cancel()
			if file == "" {
				file = "trivet-bundle-" + a.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			v, err := a.collectBundle(ctx, file, cpu)
			if err != nil {
				return err
			}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				for _, s := range slices.Sorted(maps.Keys(v.Missing)) {
					a.Printer().Notef("Nothing from %s: %s", s, v.Missing[s])
				}
				_, err := fmt.Fprintf(w, "%s (%s) from %s\n", v.File, render.Bytes(uint64(v.Bytes)), strings.Join(v.Servers, ", "))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "`path` of the archive (default trivet-bundle-TIME.tar.gz); must not exist")
	cmd.Flags().DurationVar(&cpu, "cpu-profile", 0, "`time` of a CPU profile of each server (default none)")
	return cmd
}

func (a *App) collectBundle(ctx context.Context, file string, cpu time.Duration) (bundleView, error) {
	c, err := a.Context()
	if err != nil {
		return bundleView{}, err
	}
	var (
		mu     sync.Mutex
		files  = map[string][]byte{}
		failed error // of one server
		v      = bundleView{File: file, Missing: map[string]string{}}
	)
	err = eachServer(ctx, c, cpu+bundleTime, func(ctx context.Context, i int, api operatorsvc.OperatorClient, err error) {
		name, got := c.Servers[i], map[string][]byte(nil)
		if err == nil {
			name, got, err = collectFrom(ctx, api, name, cpu)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			v.Missing[name] = render.Cause(err)
			failed = err
		}
		if len(got) > 0 {
			v.Servers = append(v.Servers, name)
		}
		for f, data := range got {
			files[path.Join(name, f)] = data
		}
	})
	if err != nil {
		return v, err
	}
	if len(v.Servers) == 0 && errs.Code(failed) == codes.PermissionDenied {
		return v, failed
	}
	if len(v.Servers) == 0 {
		return v, errs.New(codes.Unavailable, "NO_SERVER", "no server gave anything: %v", v.Missing).WithHint("trivet doctor says what is wrong")
	}
	slices.Sort(v.Servers)
	found, err := json.MarshalIndent(a.examine(ctx, c), "", "  ")
	if err != nil {
		return v, err
	}
	files["doctor.json"] = found
	files["version.txt"] = []byte(Version() + "\n")
	v.Bytes, err = writeArchive(file, files, a.Now())
	return v, err
}

// collectFrom asks one server for its part. What came before an error is kept.
func collectFrom(ctx context.Context, api operatorsvc.OperatorClient, addr string, cpu time.Duration) (name string, files map[string][]byte, err error) {
	name = addr
	if st, err := api.Status(ctx, &operatorv1.StatusRequest{}); err == nil && filepath.IsLocal(st.GetServer()) {
		name = st.GetServer()
	}
	stream, err := api.Collect(ctx, &operatorv1.CollectRequest{CpuProfile: int64(cpu)})
	if err != nil {
		return name, nil, err
	}
	parts := map[string]*bytes.Buffer{}
	defer func() {
		files = make(map[string][]byte, len(parts))
		for f, b := range parts {
			files[f] = b.Bytes()
		}
	}()
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return name, nil, nil
		}
		if err != nil {
			return name, nil, err
		}
		// The name becomes a path on the disk of whoever unpacks the archive.
		if !filepath.IsLocal(part.GetName()) || strings.ContainsAny(part.GetName(), `/\`) {
			return name, nil, errs.New(codes.DataLoss, "BAD_FILE_NAME", "server %s sent a file named %q", name, part.GetName())
		}
		b := parts[part.GetName()]
		if b == nil {
			b = new(bytes.Buffer)
			parts[part.GetName()] = b
		}
		if b.Len()+len(part.GetData()) > maxBundleFile {
			return name, nil, errs.New(codes.ResourceExhausted, "FILE_TOO_BIG", "%s of server %s is larger than %s", part.GetName(), name, render.Bytes(maxBundleFile))
		}
		b.Write(part.GetData())
	}
}

// writeArchive writes files as .tar.gz under a name that must not exist yet.
func writeArchive(file string, files map[string][]byte, now time.Time) (int64, error) {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: path.Join("trivet-bundle", name), Mode: 0o600, Size: int64(len(files[name])), ModTime: now}
		if err := tw.WriteHeader(h); err != nil {
			return 0, fmt.Errorf("write %s: %w", file, err)
		}
		if _, err := tw.Write(files[name]); err != nil {
			return 0, fmt.Errorf("write %s: %w", file, err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return 0, fmt.Errorf("write %s: %w", file, err)
	}
	return int64(buf.Len()), writeNewFile(file, &buf)
}

// writeNewFile puts what r reads into a new file: it is there whole or not at
// all, and replaces nothing.
func writeNewFile(file string, r io.Reader) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	_, err = io.Copy(tmp, r)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		// A link, unlike a rename, does not replace.
		err = os.Link(tmp.Name(), file)
	}
	if rerr := os.Remove(tmp.Name()); err == nil {
		err = rerr
	}
	if errors.Is(err, os.ErrExist) {
		return errs.New(codes.AlreadyExists, "FILE_EXISTS", "%s exists already", file).WithHint("choose another name with --file")
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

func newProfileCmd(a *App) *cobra.Command {
	var file string
	var d time.Duration
	cmd := &cobra.Command{
		Use:   "profile KIND",
		Short: "Take a profile of one server: cpu, heap, goroutine, mutex, block, allocs or trace",
		Long: `Take a profile of the server that answers first; name one with --server. Look at
it with "go tool pprof" (a trace with "go tool trace").`,
		Args: oneArg("the KIND of profile"),

		ValidArgsFunction: firstArgument(choices("cpu", "heap", "goroutine", "mutex", "block", "allocs", "trace")),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := a.timeoutOr(cmd.Context(), d+bundleTime)
			defer cancel()
			pool, err := a.Dial(ctx)
			if err != nil {
				return err
			}
			defer pool.Close()
			stream, err := operatorsvc.NewOperatorClient(pool).Profile(ctx, &operatorv1.ProfileRequest{Kind: args[0], Duration: int64(d)})
			if err != nil {
				return err
			}
			var buf bytes.Buffer
			for {
				part, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					return err
				}
				buf.Write(part.GetData())
			}
			if file == "" {
				file = args[0] + ".pprof"
			}
			size := buf.Len()
			if err := writeNewFile(file, &buf); err != nil {
				return err
			}
			v := map[string]any{"file": file, "bytes": size}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s (%s)\n", file, render.Bytes(uint64(size)))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "`path` of the profile (default KIND.pprof); must not exist")
	cmd.Flags().DurationVar(&d, "for", 10*time.Second, "`time` that cpu and trace take")
	return cmd
}
