package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Exit codes of the command line.
const (
	// ExitOK: it worked.
	ExitOK = 0
	// ExitFailure: it did not work, for a reason without a code of its own.
	ExitFailure = 1
	// ExitUsage: the command was called wrongly.
	ExitUsage = 2
	// ExitNotFound: what was named does not exist.
	ExitNotFound = 3
	// ExitDenied: the caller may not do this, or is not known.
	ExitDenied = 4
	// ExitConflict: the state of things forbids it.
	ExitConflict = 5
	// ExitUnavailable: no server could do it now.
	ExitUnavailable = 6
	// ExitTimeout: the time given was not enough.
	ExitTimeout = 7
	// ExitInterrupt: the user stopped it.
	ExitInterrupt = 130
)

var exitCodes = map[codes.Code]int{
	codes.OK:                 ExitOK,
	codes.Canceled:           ExitInterrupt,
	codes.Unknown:            ExitFailure,
	codes.InvalidArgument:    ExitUsage,
	codes.DeadlineExceeded:   ExitTimeout,
	codes.NotFound:           ExitNotFound,
	codes.AlreadyExists:      ExitConflict,
	codes.PermissionDenied:   ExitDenied,
	codes.ResourceExhausted:  ExitUnavailable,
	codes.FailedPrecondition: ExitConflict,
	codes.Aborted:            ExitConflict,
	codes.OutOfRange:         ExitUsage,
	codes.Unimplemented:      ExitFailure,
	codes.Internal:           ExitFailure,
	codes.Unavailable:        ExitUnavailable,
	codes.DataLoss:           ExitFailure,
	codes.Unauthenticated:    ExitDenied,
}

// ExitCode returns the exit code for err, ExitOK for nil.
func ExitCode(err error) int {
	if code, ok := exitCodes[codeOf(err)]; ok {
		return code
	}
	return ExitFailure
}

// codeOf is errs.Code, which a joined or wrapped context error must not hide
// from: "interrupted" and "too slow" are what the user did.
func codeOf(err error) codes.Code {
	code := errs.Code(err)
	if code == codes.Unknown {
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return codes.DeadlineExceeded
		case errors.Is(err, context.Canceled):
			return codes.Canceled
		}
	}
	return code
}

// failure is an error as programs read it.
type failure struct {
	Code    string `json:"code"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Error prints err to Err in the printer's format. It prints nothing for nil.
func (p *Printer) Error(err error) {
	if err == nil {
		return
	}
	f := describe(err)
	if p.Format.Structured() {
		// A struct of four strings always encodes.
		data, _ := json.Marshal(map[string]failure{"error": f})
		fmt.Fprintf(p.Err, "%s\n", data)
		return
	}
	fmt.Fprintf(p.Err, "Error: %s\n", f.Message)
	if f.Hint != "" {
		fmt.Fprintf(p.Err, "Hint:  %s\n", f.Hint)
	}
}

// Cause returns the one line that Error would print for err, "" for nil.
func Cause(err error) string {
	if err == nil {
		return ""
	}
	return describe(err).Message
}

func describe(err error) failure {
	e := errs.From(err)
	code := codeOf(err)
	f := failure{Code: snake(code.String()), Reason: e.Reason, Hint: Clean(e.Hint)}
	// err may be wrapped: then its text holds e's and says more.
	f.Message = oneLine(err.Error())
	if f.Hint == "" && e.RetryAfter > 0 {
		f.Hint = fmt.Sprintf("try again in %s", e.RetryAfter)
	}
	return f
}

// statusPrefix is what grpc-go puts before the message of a status.
var statusPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)

func oneLine(text string) string {
	text = statusPrefix.ReplaceAllString(text, "")
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	if text = Clean(strings.Join(lines, "; ")); text == "" {
		return "no reason was given"
	}
	return text
}

// snake turns FailedPrecondition into FAILED_PRECONDITION, the form that gRPC
// documents codes in.
func snake(name string) string {
	if name == "OK" {
		return name
	}
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}
