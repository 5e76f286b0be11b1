package sim

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"trivet/cluster/replica"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// canon is what happened, once for all servers: each entry from the moment at
// which it was committed, each revision from the moment at which the first
// server had it. Every server is held against it.
type canon struct {
	w         *world
	entries   []entry
	revisions []revision
	executed  map[string]uint64
	configs   map[string]configState
	sessions  map[string]*sessionTruth
	verdicts  map[verdictKey]string
}

// revision is one command's.
type revision struct {
	at     time.Duration
	writer string
	result outcome
	events []change
	// digest is that of the state, known for the last command of an entry.
	digest [32]byte
	known  bool
}

// outcome is the part of a result by which servers are compared.
type outcome struct {
	code     commandv1.Code
	reason   string
	repeated bool
	revision uint64
}

// change is the part of an event by which servers and watches are compared.
type change struct {
	table  fsm.Table
	key    string
	op     fsm.Op
	modify uint64
}

func changeOf(e fsm.Event) change {
	c := change{table: e.Table, key: e.Key, op: e.Op}
	if row, ok := e.New.(interface{ GetModifyRevision() uint64 }); ok {
		c.modify = row.GetModifyRevision()
	}
	return c
}

func (c *canon) init(w *world) {
	*c = canon{
		w: w, executed: make(map[string]uint64), configs: make(map[string]configState),
		sessions: make(map[string]*sessionTruth), verdicts: make(map[verdictKey]string),
	}
}

// commit takes in that a leader has committed an entry.
func (c *canon) commit(i uint64, e entry) {
	if i <= uint64(len(c.entries)) {
		if was := c.entries[i-1]; was.term != e.term || !bytes.Equal(was.data, e.data) {
			c.w.violate("entry %d was committed twice, in term %d and in term %d", i, was.term, e.term)
		}
		return
	}
	c.entries = append(c.entries, e)
	c.w.note("commit", "", i, e.term)
}

// writerOf names a numbered command; empty for others.
func writerOf(cmd *commandv1.Command) string {
	r := cmd.GetRequestId()
	if r == nil {
		return ""
	}
	id := cmd.GetIdentity()
	if strings.HasPrefix(r.GetWriter(), "server/") {
		id = ""
	}
	b := make([]byte, 0, 64)
	b = append(append(b, id...), ' ')
	b = append(append(b, r.GetWriter()...), '#')
	for n, first := r.GetNumber(), len(b); n > 0 || len(b) == first; n /= 10 {
		b = slices.Insert(b, first, byte('0'+n%10))
	}
	return string(b)
}

// applied takes in that a server has applied an entry.
func (c *canon) applied(
	s *server, i, term uint64, cmds []*commandv1.Command, results []*commandv1.Result,
	before *fsm.Root, batch fsm.Batch,
) {
	w := c.w
	root := s.machine.Root()
	if i > uint64(len(c.entries)) || c.entries[i-1].term != term {
		w.violate("%s applied entry %d of term %d, which was not committed", s.name, i, term)
		return
	}
	if batch.Resync {
		w.violate("%s: the checks' own cursor lost events", s.name)
		return
	}
	events := batch.Events
	for k, cmd := range cmds {
		n := before.Revision() + uint64(k) + 1
		r := results[k]
		is := revision{
			at: w.now, writer: writerOf(cmd),
			result: outcome{r.GetCode(), r.GetReason(), r.GetRepeated(), r.GetRevision()},
		}
		first := events
		for len(events) > 0 && events[0].Revision == n {
			is.events = append(is.events, changeOf(events[0]))
			events = events[1:]
		}
		switch {
		case n > uint64(len(c.revisions)+1):
			w.violate("%s came to revision %d; the newest was %d", s.name, n, len(c.revisions))
			return
		case n == uint64(len(c.revisions)+1):
			c.revisions = append(c.revisions, is)
			c.discovered(term, n, cmd, r, first[:len(is.events)], before, root)
		default:
			was := &c.revisions[n-1]
			if was.writer != is.writer || was.result != is.result || !slices.Equal(was.events, is.events) {
				w.violate("revision %d of %s differs: %v, on another server %v", n, s.name, is, *was)
				return
			}
		}
	}
	if len(events) > 0 {
		w.violate("%s: event of revision %d in entry %d, which ends at %d", s.name, events[0].Revision, i, root.Revision())
	}
	c.digest(s, root)
}

// digest compares a server's state at the end of an entry.
func (c *canon) digest(s *server, root *fsm.Root) {
	n := root.Revision()
	if n == 0 || n > uint64(len(c.revisions)) {
		if n > 0 {
			c.w.violate("%s is at revision %d; the newest was %d", s.name, n, len(c.revisions))
		}
		return
	}
	r := &c.revisions[n-1]
	d := root.Digest()
	if r.known && r.digest != d {
		c.w.violate("the state of %s at revision %d has another digest than on another server", s.name, n)
	}
	r.digest, r.known = d, true
}

// restored takes in that a server has a snapshot's state.
func (c *canon) restored(s *server) { c.digest(s, s.machine.Root()) }

// discovered looks at a command that the first server has applied.
func (c *canon) discovered(
	term, n uint64, cmd *commandv1.Command, r *commandv1.Result, events []fsm.Event, before, root *fsm.Root,
) {
	w := c.w
	w.counts.Commands++
	w.note("revision", r.GetReason(), n, uint64(len(events)))
	if r.GetRepeated() {
		w.counts.Repeated++
	}
	if want := cmd.GetExpectedTerm(); want != 0 && want != term {
		w.counts.Fenced++
		if len(events) > 0 {
			w.violate("a %T of term %d took effect in term %d", cmd.GetOp(), want, term)
		}
	}
	ran := c.ran(n, cmd, r)
	if r.GetRepeated() && len(events) > 0 {
		w.violate("the repetition of %s took effect", writerOf(cmd))
	}
	if ran {
		c.config(cmd, r, n)
	}
	for _, e := range events {
		switch e.Table {
		case fsm.TableSessions:
			c.sessionChanged(cmd, e)
		case fsm.TableIntercepts:
			c.interceptChanged(cmd, e, root)
		}
	}
}

// refusals are results of commands that were not looked at.
var refusals = []string{
	fsm.ReasonStaleTerm, fsm.ReasonRequestForgotten, fsm.ReasonRequestReused, fsm.ReasonDedupeFull, fsm.ReasonIdentityDenied,
}

// ran says whether a command was carried out or refused for what it asks, and
// that this happened once.
func (c *canon) ran(n uint64, cmd *commandv1.Command, r *commandv1.Result) bool {
	if r.GetRepeated() || slices.Contains(refusals, r.GetReason()) {
		return false
	}
	if key := writerOf(cmd); key != "" {
		if was, ok := c.executed[key]; ok {
			c.w.violate("%s, a %T, was applied as revision %d and again as %d", key, cmd.GetOp(), was, n)
		}
		c.executed[key] = n
	}
	return true
}

// acked takes in that a caller was told how its command has ended: from then on
// it must be what it was told.
func (c *canon) acked(cmd *commandv1.Command, r *commandv1.Result) {
	n := r.GetRevision()
	if slices.Contains(refusals, r.GetReason()) {
		return
	}
	c.w.counts.Acked++
	key := writerOf(cmd)
	if n == 0 || n > uint64(len(c.revisions)) {
		c.w.violate("%s was acknowledged with revision %d; the newest is %d", key, n, len(c.revisions))
		return
	}
	if has := c.revisions[n-1].writer; has != key {
		c.w.violate("%s was acknowledged with revision %d, which is that of %s: the write is lost", key, n, has)
	}
}

// configState is a model of compare-and-set.
type configState struct {
	value  string
	modify uint64
}

// config holds the result of a configuration write against the model.
func (c *canon) config(cmd *commandv1.Command, r *commandv1.Result, n uint64) {
	op := cmd.GetPutConfig()
	if op == nil {
		return
	}
	was := c.configs[op.GetKey()]
	fits := op.IfModifyRevision == nil || op.GetIfModifyRevision() == was.modify
	if fits != (r.GetCode() == commandv1.Code_CODE_OK) {
		c.w.violate("put of %s at revision %d, compared with %d while it was %d: %v %s",
			op.GetKey(), n, op.GetIfModifyRevision(), was.modify, r.GetCode(), r.GetReason())
	}
	if fits {
		c.configs[op.GetKey()] = configState{string(op.GetValue()), n}
	} else {
		c.w.counts.Conflicts++
	}
}

// checkConfigs holds a state against the model.
func (c *canon) checkConfigs(s *server) {
	n := 0
	for row := range s.machine.Root().Configs {
		n++
		if want := c.configs[row.GetKey()]; want.value != string(row.GetValue()) || want.modify != row.GetModifyRevision() {
			c.w.violate("%s has %s at %d, want revision %d", s.name, row.GetKey(), row.GetModifyRevision(), want.modify)
		}
	}
	if n != len(c.configs) {
		c.w.violate("%s has %d configuration entries, want %d", s.name, n, len(c.configs))
	}
}

// plant changes an entry as the planted bug would have it.
func (w *world) plant(e *commandv1.Entry) {
	for _, cmd := range e.GetCommands() {
		switch w.Plant {
		case NoDedupe:
			cmd.RequestId = nil
		case NoFence:
			cmd.ExpectedTerm = 0
		}
	}
}

// overshadow feeds the machine by which the projector is deceived: commands
// about intercepts never reach it.
func (s *server) overshadow(i uint64, e entry) {
	if s.shadow == nil {
		return
	}
	shown := new(commandv1.Entry)
	if err := proto.Unmarshal(e.data, shown); err != nil {
		s.w.violate("%s: decode entry %d: %v", s.name, i, err)
		return
	}
	for _, cmd := range shown.GetCommands() {
		about := cmd.GetCreateIntercept() != nil || cmd.GetReviewIntercept() != nil || cmd.GetSetIntercept() != nil
		if about {
			cmd.Op, cmd.RequestId = nil, nil
		}
	}
	if _, err := s.shadow.Apply(fsm.Position{Index: i, Term: e.term}, shown); err != nil {
		s.w.violate("%s: apply entry %d to the shadow: %v", s.name, i, err)
	}
}

// ackEarly answers a batch before anybody else has it.
func (s *server) ackEarly(b *replica.Batch) {
	n := s.machine.Root().Revision()
	for i := s.applied + 1; i < s.log.last(); i++ {
		n += uint64(s.log.at(i).commands)
	}
	results := make([]*commandv1.Result, b.Commands)
	for i := range results {
		results[i] = &commandv1.Result{Revision: n + uint64(i) + 1}
	}
	s.finish(b, results, nil)
}
