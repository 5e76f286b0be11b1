package operatorapi

import (
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// auditPoll is how often a follower looks for new records: the audit makes no
// events of its own, and whoever reads along is in no hurry.
const auditPoll = 250 * time.Millisecond

// Reasons of refusals.
const (
	// ReasonUnknownClass: there is no such class of audit records.
	ReasonUnknownClass = "UNKNOWN_CLASS"
	// ReasonAuditReplaced: a snapshot was restored, and the records that were
	// sent are not those that the cluster has.
	ReasonAuditReplaced = "AUDIT_REPLACED"
)

// auditClasses are the classes in the order in which they are sent.
var auditClasses = []commandv1.AuditClass{
	commandv1.AuditClass_AUDIT_CLASS_SECURITY, commandv1.AuditClass_AUDIT_CLASS_ACTION, commandv1.AuditClass_AUDIT_CLASS_LIFECYCLE,
}

func parseAuditClasses(name string) ([]commandv1.AuditClass, error) {
	if name == "" {
		return auditClasses, nil
	}
	for _, c := range auditClasses {
		if strings.EqualFold("AUDIT_CLASS_"+name, c.String()) {
			return []commandv1.AuditClass{c}, nil
		}
	}
	return nil, errs.New(codes.InvalidArgument, ReasonUnknownClass, "audit class %q is not known", name).
		WithHint("classes are security, action and lifecycle")
}

// ListAudit sends the records class by class, each in the order of its numbers,
// all from one state; the heads of the chains come with the last answer. A
// follower gets what comes later in the same way, each time with heads. Records
// that left the ring before a follower was sent them are missing, which their
// numbers show.
func (s *Service) ListAudit(req *operatorv1.ListAuditRequest, stream grpc.ServerStreamingServer[operatorv1.ListAuditResponse]) error {
	classes, err := parseAuditClasses(req.GetClass())
	if err != nil {
		return err
	}
	root, err := s.read(stream.Context())
	if err != nil {
		return err
	}
	sent := make(map[commandv1.AuditClass]*commandv1.AuditHead, len(classes))
	after := func(c commandv1.AuditClass) uint64 { return max(req.GetAfter(), sent[c].GetNumber()) }
	if err := sendAudit(stream, root, classes, after); err != nil || !req.GetFollow() {
		return err
	}
	tick := time.NewTicker(auditPoll)
	defer tick.Stop()
	for {
		for _, h := range root.Meta().GetAudit() {
			sent[h.GetClass()] = h
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.cfg.Stopping:
			return errs.New(codes.Unavailable, "SERVER_STOPPING", "this server is shutting down").
				WithHint("go on with another server, after the last number of each class")
		}
		next := s.cfg.Core.Root()
		if next.Revision() == root.Revision() {
			continue
		}
		if !continues(next, sent) {
			return errs.New(codes.Aborted, ReasonAuditReplaced, "the state was replaced, and with it the audit").
				WithHint("read it again from the beginning")
		}
		root = next
		if !auditGrown(root, classes, sent) {
			continue
		}
		if err := sendAudit(stream, root, classes, after); err != nil {
			return err
		}
	}
}

// continues tells whether the chains of a state go on where those end that
// were sent.
func continues(root *fsm.Root, sent map[commandv1.AuditClass]*commandv1.AuditHead) bool {
	for class, was := range sent {
		is := headOf(root, class)
		if is.GetNumber() < was.GetNumber() {
			return false
		}
		for row := range root.Audit(class, was.GetNumber()-1) {
			// The first may be a later one, when the ring has moved on.
			if row.GetNumber() == was.GetNumber() && string(row.GetHash()) != string(was.GetHash()) {
				return false
			}
			break
		}
	}
	return true
}

func auditGrown(root *fsm.Root, classes []commandv1.AuditClass, sent map[commandv1.AuditClass]*commandv1.AuditHead) bool {
	for _, c := range classes {
		if headOf(root, c).GetNumber() > sent[c].GetNumber() {
			return true
		}
	}
	return false
}

func headOf(root *fsm.Root, class commandv1.AuditClass) *commandv1.AuditHead {
	for _, h := range root.Meta().GetAudit() {
		if h.GetClass() == class {
			return h
		}
	}
	return nil
}

// sendAudit sends the records of some classes after a number each, in answers
// that stay well below what gRPC takes. The last one has the heads.
func sendAudit(
	stream grpc.ServerStreamingServer[operatorv1.ListAuditResponse], root *fsm.Root, classes []commandv1.AuditClass,
	after func(commandv1.AuditClass) uint64,
) error {
	out := &operatorv1.ListAuditResponse{Revision: root.Revision()}
	size := 0
	for _, c := range classes {
		for row := range root.Audit(c, after(c)) {
			n := proto.Size(row)
			if len(out.GetRecords()) == maxPageRows || len(out.GetRecords()) > 0 && size+n > maxPageBytes {
				if err := stream.Send(out); err != nil {
					return err
				}
				out, size = &operatorv1.ListAuditResponse{Revision: root.Revision()}, 0
			}
			out.Records, size = append(out.Records, row), size+n
		}
		if h := headOf(root, c); h != nil {
			out.Heads = append(out.Heads, h)
		}
	}
	return stream.Send(out)
}
