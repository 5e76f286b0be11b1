package render

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/internal/config"
	"trivet/internal/errs"
)

// Format is an output format. The zero value is Table.
type Format int

// The output formats.
const (
	// Table is aligned text for people.
	Table Format = iota
	// Wide is Table with the columns that are rarely wanted.
	Wide
	// JSON is one indented document.
	JSON
	// YAML is the same document as YAML.
	YAML
	// JSONL is one compact document per line: per item of a list, per event.
	JSONL
)

var formatNames = []string{Table: "table", Wide: "wide", JSON: "json", YAML: "yaml", JSONL: "jsonl"}

// ReasonUsage is the reason of errors about how a command was called.
const ReasonUsage = "USAGE"

// ParseFormat reads the name of a format; the error suggests the nearest one.
func ParseFormat(name string) (Format, error) {
	if i := slices.Index(formatNames, name); i >= 0 {
		return Format(i), nil
	}
	hint := "use one of: " + strings.Join(formatNames, ", ")
	if near := config.Closest(name, formatNames); near != "" {
		hint = fmt.Sprintf("did you mean %s? possible are %s", near, strings.Join(formatNames, ", "))
	}
	return Table, errs.New(codes.InvalidArgument, ReasonUsage, "unknown output format %q", name).WithHint("%s", hint)
}

// String returns the name that ParseFormat reads.
func (f Format) String() string {
	if f < 0 || int(f) >= len(formatNames) {
		return fmt.Sprintf("Format(%d)", int(f))
	}
	return formatNames[f]
}

// Structured tells whether programs read this format.
func (f Format) Structured() bool { return f == JSON || f == YAML || f == JSONL }
