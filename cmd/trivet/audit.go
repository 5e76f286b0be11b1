package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"trivet/internal/errs"
	"trivet/internal/render"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// auditView is one record of the audit.
type auditView struct {
	Class    string `json:"class"`
	Number   uint64 `json:"number"`
	Revision uint64 `json:"revision"`
	Time     string `json:"time"`
	Identity string `json:"identity,omitempty"`
	Action   string `json:"action"`
	Subject  string `json:"subject,omitempty"`
	Code     string `json:"code"`
	Reason   string `json:"reason,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

func viewAudit(r *commandv1.AuditRow) auditView {
	return auditView{
		Class: auditClass(r.GetClass()), Number: r.GetNumber(), Revision: r.GetRevision(), Time: unixNano(r.GetTime()),
		Identity: r.GetIdentity(), Action: r.GetAction(), Subject: r.GetSubject(),
		Code: strings.TrimPrefix(r.GetCode().String(), "CODE_"), Reason: r.GetReason(), Detail: r.GetDetail(),
	}
}

func auditClass(c commandv1.AuditClass) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "AUDIT_CLASS_"))
}

var auditClasses = []string{"security", "action", "lifecycle"}

func newAuditCmd(a *App) *cobra.Command {
	audit := group(&cobra.Command{Use: "audit", Short: "Who did what (role operator)"})
	audit.AddCommand(newAuditListCmd(a), newAuditExportCmd(a), newAuditVerifyCmd(a))
	return audit
}

// auditFlags choose records.
type auditFlags struct {
	class string
	after uint64
}

func (f *auditFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.class, "class", "", "only this `class`: security, action or lifecycle")
	cmd.Flags().Uint64Var(&f.after, "after", 0, "only records after this `number` of their class")
	completeFlag(cmd, "class", choices(auditClasses...))
}

func (f *auditFlags) check() error {
	if f.class != "" && !slices.Contains(auditClasses, f.class) {
		return usage("--class %q is not known", f.class).WithHint("classes are %s", strings.Join(auditClasses, ", "))
	}
	return nil
}

// each calls do with each answer of the stream.
func (f *auditFlags) each(q query, follow bool, do func(*operatorv1.ListAuditResponse) error) error {
	if err := f.check(); err != nil {
		return err
	}
	stream, err := q.api.ListAudit(q.ctx, &operatorv1.ListAuditRequest{Class: f.class, After: f.after, Follow: follow})
	if err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(r); err != nil {
			return err
		}
	}
}

var auditColumns = []render.Column[auditView]{
	{Name: "TIME", Value: func(v auditView) string { return v.Time }},
	{Name: "WHO", Value: func(v auditView) string { return v.Identity }},
	{Name: "WHAT", Value: func(v auditView) string { return v.Action }},
	{Name: "TO", Value: func(v auditView) string { return v.Subject }},
	{Name: "RESULT", Value: func(v auditView) string {
		if v.Reason != "" {
			return v.Code + " " + v.Reason
		}
		return v.Code
	}},
	{Name: "CLASS", Value: func(v auditView) string { return v.Class }},
	{Name: "NUMBER", Wide: true, Value: func(v auditView) string { return strconv.FormatUint(v.Number, 10) }},
	{Name: "REVISION", Wide: true, Value: func(v auditView) string { return strconv.FormatUint(v.Revision, 10) }},
	{Name: "DETAIL", Wide: true, Value: func(v auditView) string { return v.Detail }},
}

func newAuditListCmd(a *App) *cobra.Command {
	var f auditFlags
	var follow bool
	cmd := &cobra.Command{
		Use: "list", Short: "Show the records that the cluster keeps, by time", Args: noArgs,
		Long: `Show the records that the cluster keeps, by time; with --follow also those that
come, until interrupted.`,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if follow {
			return a.stream(func(ctx context.Context, api operatorsvc.OperatorClient) error { return a.followAudit(ctx, api, f) })(cmd, args)
		}
		return a.ask(func(q query) error {
			var rows []auditView
			var revision uint64
			err := f.each(q, false, func(r *operatorv1.ListAuditResponse) error {
				rows, revision = append(rows, views(r.GetRecords(), viewAudit)...), r.GetRevision()
				return nil
			})
			if err != nil {
				return err
			}
			slices.SortStableFunc(rows, func(x, y auditView) int {
				return int(int64(x.Revision) - int64(y.Revision))
			})
			return render.List(a.Printer(), rows, revision, "records", auditColumns)
		})(cmd, args)
	}
	f.add(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with the records that come")
	return cmd
}

// auditReplaced is the reason with which a server ends a stream of records after
// a restore.
const auditReplaced = "AUDIT_REPLACED"

// followAudit shows records as they come. Each class has numbers of its own, so
// that each has a stream that goes on after the last number shown.
func (a *App) followAudit(ctx context.Context, api operatorsvc.OperatorClient, f auditFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	classes := auditClasses
	if f.class != "" {
		classes = []string{f.class}
	}
	var mu sync.Mutex // one record at a time
	g, ctx := errgroup.WithContext(ctx)
	for _, class := range classes {
		of := auditFlags{class: class, after: f.after}
		g.Go(func() error {
			return a.reopen(ctx, func(ctx context.Context) (worked bool, err error) {
				err = of.each(query{ctx: ctx, api: api}, true, func(r *operatorv1.ListAuditResponse) error {
					worked = true
					mu.Lock()
					defer mu.Unlock()
					for _, rec := range r.GetRecords() {
						if err := a.printRecord(viewAudit(rec)); err != nil {
							return err
						}
						of.after = rec.GetNumber()
					}
					return nil
				})
				if errs.Reason(err) == auditReplaced {
					of.after = 0 // the numbers are those of another history
				}
				return worked, err
			})
		})
	}
	return g.Wait()
}

// printRecord shows one record as a line.
func (a *App) printRecord(v auditView) error {
	return render.Object(a.Printer(), v, func(w io.Writer) error {
		line := facts(v.Time, v.Class, v.Identity, v.Action, v.Subject, v.Code, v.Reason)
		_, err := fmt.Fprintln(w, render.Clean(line))
		return err
	})
}

func newAuditExportCmd(a *App) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print the records as they are, one JSON object a line, heads of the chains last",
		Long: `Print the records with their hashes, for "trivet audit verify" and for keeping
longer than the cluster does. Class by class, in the order of their numbers.`,
		Args: noArgs,
		RunE: a.ask(func(q query) error {
			var heads []*commandv1.AuditHead
			err := f.each(q, false, func(r *operatorv1.ListAuditResponse) error {
				heads = r.GetHeads()
				for _, rec := range r.GetRecords() {
					if err := writeProtoLine(a.Out, rec, "", ""); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			for _, h := range heads {
				if err := writeProtoLine(a.Out, h, `{"head":`, "}"); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	f.add(cmd)
	return cmd
}

// writeProtoLine writes a message as one line. Exports of the same records are
// the same bytes, which protojson alone does not promise.
func writeProtoLine(w io.Writer, m proto.Message, before, after string) error {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	line := bytes.NewBufferString(before)
	if err := json.Compact(line, raw); err != nil {
		return err
	}
	line.WriteString(after + "\n")
	_, err = w.Write(line.Bytes())
	return err
}
