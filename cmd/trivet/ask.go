package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// query is what a command that asks and answers works with.
type query struct {
	ctx  context.Context
	args []string
	api  operatorsvc.OperatorClient
}

// ask makes the body of such a command: it connects, calls and disconnects
// within the command's timeout.
func (a *App) ask(do func(query) error) func(*cobra.Command, []string) error {
	return a.askFor(defaultTimeout, do)
}

// askFor is ask with another default of --timeout.
func (a *App) askFor(timeout time.Duration, do func(query) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := a.timeoutOr(cmd.Context(), timeout)
		defer cancel()
		pool, err := a.Dial(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		return do(query{ctx: ctx, args: args, api: operatorsvc.NewOperatorClient(pool)})
	}
}

// pages asks for all pages of a list. The revision is that of the last one.
func pages[M any](ask func(*operatorv1.Page) (items []M, next string, revision uint64, err error)) ([]M, uint64, error) {
	var all []M
	page := &operatorv1.Page{}
	for {
		items, next, revision, err := ask(page)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, items...)
		if next == "" {
			return all, revision, nil
		}
		page = &operatorv1.Page{Token: next}
	}
}

// views turns messages into what is shown of them.
func views[M, V any](messages []M, view func(M) V) []V {
	out := make([]V, 0, len(messages))
	for _, m := range messages {
		out = append(out, view(m))
	}
	return out
}

// moment is a timestamp as JSON shows it: absent when there is none.
func moment(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}

// unixNano is a time in unix nanoseconds as text.
func unixNano(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// ageText is how long ago t was, for a table.
func (a *App) ageText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return render.Age(*t, a.Now())
}
