package fsm

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Sizes of what comes from outside, in bytes.
const (
	// maxText bounds names and versions, maxLine every other text but a variable
	// of an environment: those are bounded together.
	maxText = 512
	maxLine = 4096
	// maxEntries bounds each list and map but environments.
	maxEntries = 1024
	// maxResultText bounds the message and the hint of an answer, which may
	// quote what was asked.
	maxResultText = 1024

	maxClientBytes = 16 << 10
	maxAgentBytes  = 256 << 10
	maxSpecBytes   = 64 << 10
	maxNodeBytes   = 16 << 10
	maxServerBytes = 16 << 10
	maxReviewBytes = 384 << 10
	maxSealedBytes = 384 << 10
)

// boundElsewhere are fields with rules of their own: variables of environments
// are bounded by the size of the whole, and messages are cut.
var boundElsewhere = map[protoreflect.Name]bool{"environment": true, "message": true}

// bounded refuses a message that came from outside and is larger than any
// sensible one, as a whole or in one of its parts.
func (t *tx) bounded(what string, m proto.Message, limit int) *commandv1.Result {
	if size := proto.Size(m); size > limit {
		return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge, "%s of %d bytes is larger than %d", what, size, limit)
	}
	if problem := t.enc.oversized(m.ProtoReflect()); problem != "" {
		return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge, "%s: %s", what, problem)
	}
	return nil
}

// oversized names the first field, in the order of their numbers, that is too
// long or has too many entries. All replicas name the same: where maps are
// looked through in any order, nothing depends on it.
func (e *encoder) oversized(m protoreflect.Message) string {
	for _, fd := range e.ordered(m.Descriptor()) {
		if boundElsewhere[fd.Name()] || !m.Has(fd) {
			continue
		}
		var problem string
		switch v := m.Get(fd); {
		case fd.IsMap():
			problem = e.oversizedMap(fd, v.Map())
		case fd.IsList():
			problem = e.oversizedList(fd, v.List())
		default:
			problem = e.oversizedValue(fd, v)
		}
		if problem != "" {
			return fmt.Sprintf("%s %s", fd.Name(), problem)
		}
	}
	return ""
}

func (e *encoder) oversizedValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.StringKind:
		if n := len(v.String()); n > maxLine {
			return fmt.Sprintf("is longer than %d bytes", maxLine)
		}
	case protoreflect.MessageKind:
		return e.oversized(v.Message())
	}
	return ""
}

func (e *encoder) oversizedList(fd protoreflect.FieldDescriptor, l protoreflect.List) string {
	if l.Len() > maxEntries {
		return fmt.Sprintf("has %d entries, more than %d", l.Len(), maxEntries)
	}
	if fd.Kind() != protoreflect.StringKind && fd.Kind() != protoreflect.MessageKind {
		return ""
	}
	for i := range l.Len() {
		if problem := e.oversizedValue(fd, l.Get(i)); problem != "" {
			return problem
		}
	}
	return ""
}

// oversizedMap returns the problem that sorts first, for the order in which the
// entries come is not the same everywhere.
func (e *encoder) oversizedMap(fd protoreflect.FieldDescriptor, m protoreflect.Map) (problem string) {
	if m.Len() > maxEntries {
		return fmt.Sprintf("has %d entries, more than %d", m.Len(), maxEntries)
	}
	note := func(p string) {
		if p != "" && (problem == "" || p < problem) {
			problem = p
		}
	}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		note(e.oversizedValue(fd.MapKey(), k.Value()))
		note(e.oversizedValue(fd.MapValue(), v))
		return true
	})
	return problem
}

func sealedTooLarge(b []byte) *commandv1.Result {
	if len(b) > maxSealedBytes {
		return environmentRefused(len(b), maxSealedBytes)
	}
	return nil
}

func environmentRefused(size, limit int) *commandv1.Result {
	return hinted(refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonEnvironmentTooLarge,
		"an environment of %d bytes is larger than %d", size, limit), "leave it out")
}

// tooLong refuses names that are longer than any sensible one. It is given
// pairs of what is named and the name.
func tooLong(pairs ...string) *commandv1.Result {
	for i := 0; i+1 < len(pairs); i += 2 {
		if len(pairs[i+1]) > maxText {
			return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge, "%s of %d bytes is longer than %d", pairs[i], len(pairs[i+1]), maxText)
		}
	}
	return nil
}

// cut bounds a text, which may come from anybody.
func cut(s string, limit int) string {
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "")
	}
	return s
}
