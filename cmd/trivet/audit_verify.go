package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/render"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// maxAuditLine bounds a line of an export, far above what a record can be.
const maxAuditLine = 1 << 20

// reasonAuditBroken: a record was changed, or some are missing.
const reasonAuditBroken = "AUDIT_BROKEN"

// chainView is what was found of one class.
type chainView struct {
	Class   string `json:"class"`
	Records int    `json:"records"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	// Oldest is what the cluster itself had when the head was made: an export
	// may be older, or begin later.
	Oldest uint64 `json:"oldest"`
}

// chains checks records as they come. It holds the last one of each class.
type chains struct {
	views []*chainView
	last  map[commandv1.AuditClass]*commandv1.AuditRow
	// open: records came after the last head of the class.
	open map[commandv1.AuditClass]bool
}

func newChains() *chains {
	return &chains{last: map[commandv1.AuditClass]*commandv1.AuditRow{}, open: map[commandv1.AuditClass]bool{}}
}

func (c *chains) view(class commandv1.AuditClass) *chainView {
	name := auditClass(class)
	for _, v := range c.views {
		if v.Class == name {
			return v
		}
	}
	v := &chainView{Class: name}
	c.views = append(c.views, v)
	return v
}

func (c *chains) record(r *commandv1.AuditRow) error {
	pair := []*commandv1.AuditRow{r}
	if before := c.last[r.GetClass()]; before != nil {
		pair = []*commandv1.AuditRow{before, r}
	}
	if err := fsm.VerifyAudit(pair, nil); err != nil {
		return fmt.Errorf("class %s: %w", auditClass(r.GetClass()), err)
	}
	c.last[r.GetClass()], c.open[r.GetClass()] = r, true
	v := c.view(r.GetClass())
	if v.Records++; v.Records == 1 {
		v.First = r.GetNumber()
	}
	v.Last = r.GetNumber()
	return nil
}

// head checks that the records so far end where the chain did.
func (c *chains) head(h *commandv1.AuditHead) error {
	c.open[h.GetClass()] = false
	c.view(h.GetClass()).Oldest = h.GetOldest()
	last := c.last[h.GetClass()]
	if last == nil {
		return nil // exported after the last one
	}
	if err := fsm.VerifyAudit([]*commandv1.AuditRow{last}, h); err != nil {
		return fmt.Errorf("class %s: %w", auditClass(h.GetClass()), err)
	}
	return nil
}

// end finds the classes whose end is not there.
func (c *chains) end() error {
	for class, open := range c.open {
		if open {
			return fmt.Errorf("class %s: the records end at %d without the head of the chain: the end is missing",
				auditClass(class), c.last[class].GetNumber())
		}
	}
	return nil
}

func broken(where string, err error) error {
	return errs.New(codes.DataLoss, reasonAuditBroken, "the audit is not whole%s: %w", where, err).
		WithHint("compare with an export made earlier, and with `trivet audit verify` of the cluster itself")
}

func newAuditVerifyCmd(a *App) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Check that no record was changed or left out; exits 1 if one was",
		Long: `Check the chains of hashes: that each record is what it was when it was made, that
none is missing in between, and that the last one is the last one that there
was. Of a FILE that "trivet audit export" made ("-": standard input; several
exports may follow each other in it), or else of the cluster itself.

Who can write the whole file can make a chain that is whole: keep exports where
others cannot write.`,
		Args: cobra.MaximumNArgs(1),
	}
	f.add(cmd)
	live := a.ask(func(q query) error { return a.verifyCluster(q, &f) })
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return live(cmd, args)
		}
		if cmd.Flags().Changed("class") || cmd.Flags().Changed("after") {
			return usage("--class and --after choose records of the cluster, not of a file").
				WithHint("leave them out, or leave %q out", args[0])
		}
		if args[0] == "-" {
			return a.verifyExport(a.In, "standard input")
		}
		file, err := os.Open(args[0])
		if errors.Is(err, os.ErrNotExist) {
			return errs.New(codes.NotFound, "FILE_NOT_FOUND", "open the export: %w", err).WithHint("make one: trivet audit export > FILE")
		}
		if err != nil {
			return fmt.Errorf("open the export: %w", err)
		}
		defer file.Close()
		return a.verifyExport(file, args[0])
	}
	return cmd
}

func (a *App) verifyCluster(q query, f *auditFlags) error {
	c := newChains()
	err := f.each(q, false, func(r *operatorv1.ListAuditResponse) error {
		for _, rec := range r.GetRecords() {
			if err := c.record(rec); err != nil {
				return broken("", err)
			}
		}
		for _, h := range r.GetHeads() {
			if err := c.head(h); err != nil {
				return broken("", err)
			}
			if v := c.view(h.GetClass()); f.after == 0 && v.First != h.GetOldest() {
				return broken("", fmt.Errorf("class %s: the oldest record is %d, not %d", v.Class, v.First, h.GetOldest()))
			}
		}
		return nil
	})
	if err == nil {
		if err = c.end(); err != nil {
			err = broken("", err)
		}
	}
	if err != nil {
		return err
	}
	return a.printChains(c)
}

func (a *App) verifyExport(in io.Reader, name string) error {
	c := newChains()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxAuditLine)
	n := 0
	for lines.Scan() {
		n++
		where := fmt.Sprintf(" (line %d of %s)", n, name)
		record, head, err := parseAuditLine(lines.Bytes())
		if err != nil {
			return errs.New(codes.InvalidArgument, "BAD_EXPORT", "read line %d of %s: %w", n, name, err).
				WithHint("give a file that `trivet audit export` made")
		}
		if head != nil {
			err = c.head(head)
		} else {
			err = c.record(record)
		}
		if err != nil {
			return broken(where, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read line %d of %s: %w", n+1, name, err)
	}
	if n == 0 {
		return errs.New(codes.InvalidArgument, "BAD_EXPORT", "%s is empty", name).WithHint("give a file that `trivet audit export` made")
	}
	if err := c.end(); err != nil {
		return broken(" (at the end of "+name+")", err)
	}
	return a.printChains(c)
}

// parseAuditLine reads one line of an export: a record or a head.
func parseAuditLine(line []byte) (*commandv1.AuditRow, *commandv1.AuditHead, error) {
	var either struct {
		Head json.RawMessage `json:"head"`
	}
	if err := json.Unmarshal(line, &either); err != nil {
		return nil, nil, err
	}
	if either.Head != nil {
		head := new(commandv1.AuditHead)
		return nil, head, protojson.Unmarshal(either.Head, head)
	}
	record := new(commandv1.AuditRow)
	return record, nil, protojson.Unmarshal(line, record)
}

func (a *App) printChains(c *chains) error {
	number := func(get func(*chainView) uint64) func(*chainView) string {
		return func(v *chainView) string { return strconv.FormatUint(get(v), 10) }
	}
	return render.List(a.Printer(), c.views, 0, "chains", []render.Column[*chainView]{
		{Name: "CLASS", Value: func(v *chainView) string { return v.Class }},
		{Name: "RECORDS", Value: func(v *chainView) string { return strconv.Itoa(v.Records) }},
		{Name: "FIRST", Value: number(func(v *chainView) uint64 { return v.First })},
		{Name: "LAST", Value: number(func(v *chainView) uint64 { return v.Last })},
		{Name: "OLDEST KEPT", Value: number(func(v *chainView) uint64 { return v.Oldest })},
		{Name: "CHAIN", Value: func(*chainView) string { return "whole" }},
	})
}
