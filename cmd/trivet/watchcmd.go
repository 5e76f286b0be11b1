package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Bounds of the wait before a stream is opened again.
const (
	reopenMin = 100 * time.Millisecond
	reopenMax = 3 * time.Second
)

// changeView is one change that a watch shows.
type changeView struct {
	Op       string `json:"op"` // put or delete
	Revision uint64 `json:"revision"`
	Key      string `json:"key"`
	Row      any    `json:"row,omitempty"`
}

// shown is what a watch shows of a row; false: nothing.
type shown func(*operatorv1.Change) (row any, text string, ok bool)

// newWatchCmd makes the watch command of a table.
func newWatchCmd(a *App, what, table string, show shown) *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: fmt.Sprintf("Show the %s and every change of them, until interrupted (role operator or viewer)", what),
		Long: `Each line is one change: + for a row that is there or has changed, - for one that
is gone. The watch outlives the server that it is on: it goes on with another one
after the last change that was shown, leaving nothing out.`,
		Args: noArgs,
		RunE: a.stream(func(ctx context.Context, api operatorsvc.OperatorClient) error {
			w := tableWatch{a: a, table: table, show: show, known: make(map[string]struct{})}
			return a.reopen(ctx, func(ctx context.Context) (bool, error) { return w.run(ctx, api) })
		}),
	}
}

// stream makes the body of a command that shows what happens until it is
// interrupted: --timeout bounds only the connecting.
func (a *App) stream(do func(context.Context, operatorsvc.OperatorClient) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if f := a.Printer().Format; f == render.JSON || f == render.YAML {
			return usage("%s shows what happens as it goes, which %s cannot", cmd.CommandPath(), f).WithHint("use -o jsonl")
		}
		ctx, cancel := a.timeoutOr(cmd.Context(), defaultTimeout)
		defer cancel()
		pool, err := a.Dial(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		err = do(cmd.Context(), operatorsvc.NewOperatorClient(pool))
		if cmd.Context().Err() != nil {
			return exitStatus(render.ExitCode(context.Cause(cmd.Context())))
		}
		return err
	}
}

// reopen calls open again and again, as long as it ends for a reason that
// another server may not have. open says whether it has received anything.
func (a *App) reopen(ctx context.Context, open func(context.Context) (worked bool, err error)) error {
	wait := reopenMin
	for {
		worked, err := open(ctx)
		switch status.Code(err) {
		case codes.Unavailable, codes.Aborted, codes.OutOfRange:
		default:
			return err
		}
		if worked {
			wait = reopenMin
			a.Printer().Notef("the stream broke, going on with another server: %s", render.Cause(err))
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		wait = min(2*wait, reopenMax)
	}
}

// tableWatch shows the changes of one table.
type tableWatch struct {
	a     *App
	table string
	show  shown
	// after is the revision after which the watch goes on.
	after uint64
	// known are the keys that were shown and are there.
	known map[string]struct{}
}

func (w *tableWatch) run(ctx context.Context, api operatorsvc.OperatorClient) (worked bool, err error) {
	stream, err := api.Watch(ctx, &operatorv1.WatchRequest{AfterRevision: w.after, Tables: []string{w.table}})
	if err != nil {
		return false, err
	}
	// Keys of a full state that comes in parts; nil outside of one.
	var full map[string]struct{}
	for {
		r, err := stream.Recv()
		if err != nil {
			return worked, err
		}
		worked = true
		if r.GetFull() {
			full = make(map[string]struct{})
		}
		for _, c := range r.GetChanges() {
			if full != nil {
				full[c.GetKey()] = struct{}{}
			}
			if err := w.change(c); err != nil {
				return worked, err
			}
		}
		if r.GetRevision() == 0 {
			continue
		}
		w.after = r.GetRevision()
		if full == nil {
			continue
		}
		for key := range w.known {
			if _, ok := full[key]; !ok {
				if err := w.change(&operatorv1.Change{Revision: w.after, Key: key, Op: "delete"}); err != nil {
					return worked, err
				}
			}
		}
		full = nil
	}
}

func (w *tableWatch) change(c *operatorv1.Change) error {
	v := changeView{Op: c.GetOp(), Revision: c.GetRevision(), Key: c.GetKey()}
	line := "- " + c.GetKey()
	if c.GetOp() == "delete" {
		if _, ok := w.known[c.GetKey()]; !ok {
			return nil
		}
		delete(w.known, c.GetKey())
	} else {
		row, text, ok := w.show(c)
		if !ok {
			return nil
		}
		w.known[c.GetKey()] = struct{}{}
		v.Row, line = row, "+ "+text
	}
	return render.Object(w.a.Printer(), v, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "%d %s\n", v.Revision, render.Clean(line))
		return err
	})
}

// facts joins what there is to say of a row.
func facts(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}

// inNamespace says whether --namespace lets a row be shown.
func (a *App) inNamespace(ns string) bool { return a.flags.namespace == "" || a.flags.namespace == ns }

func newSessionWatchCmd(a *App) *cobra.Command {
	return newWatchCmd(a, "sessions", "sessions", func(c *operatorv1.Change) (any, string, bool) {
		v := viewSession(c.GetSession())
		return v, facts(v.ID, v.Kind, v.Name, v.Namespace, v.PodName), a.inNamespace(v.Namespace)
	})
}

func newInterceptWatchCmd(a *App) *cobra.Command {
	return newWatchCmd(a, "intercepts", "intercepts", func(c *operatorv1.Change) (any, string, bool) {
		v := viewIntercept(c.GetIntercept())
		return v, facts(v.ID, v.Workload+"."+v.Namespace, v.Client, v.Disposition, v.OwnerState, v.Message), c.GetIntercept().GetParent() == "" && a.inNamespace(v.Namespace)
	})
}

func newWorkloadWatchCmd(a *App) *cobra.Command {
	return newWatchCmd(a, "workloads", "workloads", func(c *operatorv1.Change) (any, string, bool) {
		w := c.GetWorkload()
		v := viewWorkload(w)
		return v, facts(v.Name+"."+v.Namespace, v.Kind, fmt.Sprintf("pods=%d", v.Pods)), a.inNamespace(v.Namespace)
	})
}
