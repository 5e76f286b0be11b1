package fsm

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"math"
	"strings"

	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// maxAnswers is the number of answers that one writer may leave unfetched.
	// Servers keep fewer calls open than that.
	maxAnswers = 1024
	// writerIdle is how long a writer is remembered after its last command, by the
	// steady time.
	writerIdle = 24 * 60 * 60 * 1e9
	// idleDropsPerCommand bounds how many idle writers one command forgets, so
	// that no command pays for a crowd.
	idleDropsPerCommand = 8
	// maxWriterName and maxPayloadDigest bound what is remembered of a request.
	maxWriterName    = 512
	maxPayloadDigest = 64
	// hashSize is the kept part of the keyed hash.
	hashSize = 16
)

// writer is one numbering of commands: by one process of one identity, or by
// one server.
type writer struct {
	identity, name string // identity is empty for servers
	lowest         uint64
	usedAt         int64
	modifyRevision uint64

	// Derived from the answers, not encoded.
	answers, bytes int
}

func (w *writer) key() string { return part(w.identity) + w.name }

func (w *writer) isServer() bool {
	return w.identity == "" && strings.HasPrefix(w.name, serverWriters)
}

// retiredLowest is the lowest number of a server's writer whose process has
// ended: it is higher than all that the process has used.
const retiredLowest = math.MaxUint64

// retired says that nothing under the writer's numbers is applied any more. Only
// servers are: a caller's writer may choose that number as any other.
func (w *writer) retired() bool { return w.lowest == retiredLowest && w.isServer() }

var writerKind = &kind[*writer]{
	id:  TableDedupe,
	tag: byte(TableDedupe),
	key: (*writer).key,
	encode: func(e *encoder, w *writer) {
		e.str(w.identity)
		e.str(w.name)
		e.uvarint(w.lowest)
		e.uvarint(uint64(w.usedAt))
		e.uvarint(w.modifyRevision)
	},
	stamp:     func(w *writer, _, modify uint64) { w.modifyRevision = modify },
	revisions: func(w *writer) (create, modify uint64) { return w.modifyRevision, w.modifyRevision },
	index: []func(*writer, func(string)){
		writersByUse: func(w *writer, emit func(string)) { emit(bigEndian(uint64(w.usedAt))) },
	},
	silent: true,
}

// answer is the stored result of one numbered command. It is a row of its own
// so that one more answer does not cost hashing all the earlier ones.
type answer struct {
	writer string // key of the writer
	number uint64
	hash   []byte
	result *commandv1.Result
}

func answerKey(writer string, number uint64) string { return part(writer) + bigEndian(number) }

var answerKind = &kind[*answer]{
	id:  TableDedupe,
	tag: byte(TableDedupe) | 0x80,
	key: func(a *answer) string { return answerKey(a.writer, a.number) },
	encode: func(e *encoder, a *answer) {
		e.uvarint(a.number)
		e.bytes(a.hash)
		e.message(a.result.ProtoReflect())
	},
	stamp: func(*answer, uint64, uint64) {},
	revisions: func(a *answer) (create, modify uint64) {
		return a.result.GetRevision(), a.result.GetRevision()
	},
	silent: true,
}

// answersOf yields a writer's answers in the order of their numbers.
func (r *Root) answersOf(key string, yield func(*answer) bool) {
	r.answers.rows.Ascend(part(key), func(_ string, s *stored[*answer]) bool {
		return s.row.writer == key && yield(s.row)
	})
}

// slot is the place where the answer to a numbered command will be stored.
type slot struct {
	// writer is the row as it will be stored, not in the table yet.
	writer *writer
	number uint64
	hash   []byte
}

// serverWriters starts the names of writers that are servers. A server numbers
// the calls of all its peers in one sequence, so that the peers' identities
// are not part of the key; no other writer may use such a name.
const serverWriters = "server/"

// admit looks a numbered command up. It returns either the answer, because the
// command was applied before or cannot be, or the slot for the answer; neither
// for a command without a number.
func (t *tx) admit(req *commandv1.RequestId) (*slot, *commandv1.Result) {
	if req == nil {
		return nil, nil
	}
	if res := checkRequest(req); res != nil {
		return nil, res
	}
	t.forgetIdle()
	w := &writer{identity: t.cmd.GetIdentity(), name: req.GetWriter(), usedAt: t.steady()}
	if strings.HasPrefix(w.name, serverWriters) {
		w.identity = ""
	}
	if known, ok := t.work.writers.get(w.key()); ok {
		w.lowest, w.answers, w.bytes = known.lowest, known.answers, known.bytes
	}
	s := &slot{writer: w, number: req.GetNumber(), hash: t.payloadHash(req.GetPayloadDigest())}
	if w.retired() {
		return nil, hinted(refuse(commandv1.Code_CODE_ABORTED, ReasonRequestForgotten,
			"request %d is of %s, a process that was replaced or removed: its outcome is unknown to the manager",
			s.number, w.name),
			"look at the present state before you send it again under a new number")
	}
	if s.number < w.lowest {
		return nil, hinted(refuse(commandv1.Code_CODE_ABORTED, ReasonRequestForgotten,
			"request %d of %s is older than %d: its outcome is unknown to the manager",
			s.number, w.name, w.lowest),
			"look at the present state before you send it again under a new number")
	}
	stored, ok := t.work.answers.get(answerKey(w.key(), s.number))
	if ok && !bytes.Equal(stored.hash, s.hash) {
		return nil, refuse(commandv1.Code_CODE_ABORTED, ReasonRequestReused,
			"request %d of %s was sent before with another content", s.number, w.name)
	}
	t.release(w, req.GetLowest())
	switch {
	case ok:
		t.keep(s)
		res := t.recall(edit(stored.result))
		res.Repeated = true
		return nil, res
	case w.answers >= maxAnswers || w.bytes >= t.maxBytesOf(w):
		t.keep(s)
		return nil, hinted(refuse(commandv1.Code_CODE_RESOURCE_EXHAUSTED, ReasonDedupeFull,
			"%s has %d unfetched answers of %d bytes", w.name, w.answers, w.bytes),
			"raise the lowest number that is still waited for")
	}
	return s, nil
}

func checkRequest(req *commandv1.RequestId) *commandv1.Result {
	switch {
	case req.GetWriter() == "":
		return invalid("request writer must not be empty")
	case len(req.GetWriter()) > maxWriterName:
		return invalid("request writer must not be longer than %d bytes", maxWriterName)
	case len(req.GetPayloadDigest()) > maxPayloadDigest:
		return invalid("request payload digest must not be longer than %d bytes", maxPayloadDigest)
	case req.GetNumber() == 0:
		return invalid("request numbers start at 1")
	case req.GetLowest() > req.GetNumber():
		return invalid("request %d is lower than the lowest one waited for, %d",
			req.GetNumber(), req.GetLowest())
	}
	return nil
}

// payloadHash keys the digest, so that somebody who reads the table or a
// snapshot without the key cannot test guesses of what was sent.
func (t *tx) payloadHash(digest []byte) []byte {
	mac := hmac.New(sha256.New, t.work.meta.GetDedupeKey())
	mac.Write(digest)
	mac.Write([]byte{0})
	mac.Write([]byte(t.cmd.GetIdentity()))
	return mac.Sum(nil)[:hashSize]
}

// release drops the answers below the lowest number that the writer waits for.
// It changes w, which is not in the table yet.
func (t *tx) release(w *writer, lowest uint64) {
	if lowest <= w.lowest {
		return
	}
	w.lowest = lowest
	var gone []uint64
	t.work.answersOf(w.key(), func(a *answer) bool {
		if a.number >= lowest {
			return false
		}
		gone = append(gone, a.number)
		return true
	})
	for _, number := range gone {
		w.bytes -= t.dropAnswer(w.key(), number)
		w.answers--
	}
}

// keep stores a known writer's row when there is no answer to store with it.
func (t *tx) keep(s *slot) {
	if _, ok := t.work.writers.get(s.writer.key()); ok {
		t.putWriter(s.writer)
	}
}

// settle stores the answer to a command.
func (t *tx) settle(s *slot, res *commandv1.Result) {
	w := s.writer
	key := w.key()
	known, ok := t.work.writers.get(key)
	if ok && known.retired() {
		return // the command itself has retired it
	}
	if !ok {
		// It is new, or the command itself has forgotten it.
		w.answers, w.bytes = 0, 0
		t.makeRoomFor(w)
	}
	put(t, &t.work.answers, &answer{writer: key, number: s.number, hash: s.hash, result: t.memo(w, res)})
	kept, _ := t.work.answers.rows.Get(answerKey(key, s.number))
	w.answers++
	w.bytes += kept.size
	t.work.dedupeBytes += kept.size
	t.putWriter(w)
	t.keepWithin(w)
}

func (t *tx) dropAnswer(writer string, number uint64) (size int) {
	size = drop(t, &t.work.answers, answerKey(writer, number))
	t.work.dedupeBytes -= size
	return size
}

// forget drops a writer and its answers.
func (t *tx) forget(key string) {
	var numbers []uint64
	t.work.answersOf(key, func(a *answer) bool {
		numbers = append(numbers, a.number)
		return true
	})
	for _, number := range numbers {
		t.dropAnswer(key, number)
	}
	t.dropWriter(key)
}
