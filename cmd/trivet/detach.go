package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/client"
	"trivet/internal/errs"
	"trivet/internal/render"
)

// detachPoll is the pause between two looks at the log of a detached command.
const detachPoll = 20 * time.Millisecond

// detachedView is an intercept that a process in the background serves.
type detachedView struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	Pid  int    `json:"pid"`
	Log  string `json:"log"`
}

// detach runs the same command in the background, without --detach, and
// returns when its intercept is active. The background process ends when the
// intercept is removed.
func (a *App) detach(cmd *cobra.Command, spec client.InterceptSpec) error {
	dir, err := a.stateDir()
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, "intercepts")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of logs: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, spec.Name+".jsonl"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	child := exec.Command(exe, detachedArgs(a.args)...)
	child.Stdout, child.Stderr = log, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal, no Ctrl-C
	if err := child.Start(); err != nil {
		return fmt.Errorf("start the background process: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	v := detachedView{Name: spec.Name, Pid: child.Process.Pid, Log: log.Name()}
	for {
		active, failure := readLog(log.Name(), &v)
		switch {
		case active:
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "intercept %s is active in the background (pid %d, log %s)\nend it with: trivet intercept delete %s\n",
					v.Name, v.Pid, v.Log, v.Name)
				return err
			})
		case len(ended) > 0:
			if failure == nil {
				failure = errs.New(codes.Unknown, "DETACHED_ENDED", "the background process ended").WithHint("see %s", v.Log)
			}
			return failure
		}
		if !pause(cmd.Context(), detachPoll) {
			_ = child.Process.Signal(syscall.SIGINT) // it cleans up
			<-ended
			return errInterrupted
		}
	}
}

// detachedArgs is the command line of the background process.
func detachedArgs(args []string) []string {
	out := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return arg == "--detach" || strings.HasPrefix(arg, "--detach=")
	})
	return append(out, "--output", "jsonl")
}

// readLog reads what the background process has said so far.
func readLog(path string, v *detachedView) (active bool, failure error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, nil // said nothing yet
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Event client.EventKind `json:"event"`
			ID    string           `json:"id"`
			Error *struct{ Code, Reason, Message, Hint string }
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		if line.ID != "" {
			v.ID = line.ID
		}
		active = active || line.Event == client.EventActive
		if e := line.Error; e != nil {
			failure = errs.New(codeNamed(e.Code), e.Reason, "%s", e.Message).WithHint("%s", e.Hint)
		}
	}
	return active, failure
}

// codeNamed reads a code as errors in JSON spell it.
func codeNamed(name string) codes.Code {
	var code codes.Code
	if json.Unmarshal([]byte(`"`+name+`"`), &code) != nil {
		return codes.Unknown
	}
	return code
}
