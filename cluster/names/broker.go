package names

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
)

// maxAsked bounds the questions that wait for one agent: its stream may be dead
// without this server knowing.
const maxAsked = 64

var (
	// ErrNotHere: the agent does not wait for questions on this server.
	ErrNotHere = errors.New("the agent has no stream of questions here")
	// ErrBusy: the agent does not answer the questions that it has.
	ErrBusy = errors.New("the agent does not answer")
)

// Broker hands questions to agents.
type Broker struct {
	mu      sync.Mutex
	streams map[string][]*Stream        // by session of the agent; guarded by mu
	waiting map[string]map[string]*wait // by session and correlation; guarded by mu
	next    uint64                      // guarded by mu

	asked, answered, dropped atomic.Uint64
}

// wait is a question that an agent has.
type wait struct {
	question *manager.DNSRequest
	answer   chan *manager.DNSResponse
}

// NewBroker makes a Broker.
func NewBroker() *Broker {
	return &Broker{streams: make(map[string][]*Stream), waiting: make(map[string]map[string]*wait)}
}

// Stream is an agent that waits for questions.
type Stream struct {
	b       *Broker
	session string
	queue   chan *manager.DNSRequest
}

// Open registers the stream of an agent's session. The caller must Close it.
func (b *Broker) Open(session string) *Stream {
	s := &Stream{b: b, session: session, queue: make(chan *manager.DNSRequest, maxAsked)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams[session] = append(b.streams[session], s)
	return s
}

// Questions delivers what the agent is asked.
func (s *Stream) Questions() <-chan *manager.DNSRequest { return s.queue }

// Close removes the stream. What it was asked and has not answered ends with the
// time of those who asked.
func (s *Stream) Close() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	list := s.b.streams[s.session]
	for i, x := range list {
		if x == s {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(s.b.streams, s.session)
		return
	}
	s.b.streams[s.session] = list
}

// Ask asks an agent and waits for its answer until ctx ends.
func (b *Broker) Ask(ctx context.Context, agent string, q *manager.DNSRequest) (*manager.DNSResponse, error) {
	w, key, err := b.hand(agent, q)
	if err != nil {
		return nil, err
	}
	defer b.forget(agent, key)
	select {
	case a := <-w.answer:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// hand queues a question on the agent's newest stream. Its correlation goes in a
// field that agents send back and do not look at, so that two equal questions
// have an answer each.
func (b *Broker) hand(agent string, q *manager.DNSRequest) (*wait, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.streams[agent]
	if len(list) == 0 {
		return nil, "", ErrNotHere
	}
	if len(b.waiting[agent]) >= maxAsked {
		b.dropped.Add(1)
		return nil, "", ErrBusy
	}
	b.next++
	key := strconv.FormatUint(b.next, 36)
	q = proto.CloneOf(q)
	q.Session = &manager.SessionInfo{SessionId: q.GetSession().GetSessionId(), ManagerInstallId: key}
	select {
	case list[len(list)-1].queue <- q:
	default:
		b.dropped.Add(1)
		return nil, "", ErrBusy
	}
	if b.waiting[agent] == nil {
		b.waiting[agent] = make(map[string]*wait)
	}
	w := &wait{question: q, answer: make(chan *manager.DNSResponse, 1)}
	b.waiting[agent][key] = w
	b.asked.Add(1)
	return w, key, nil
}

func (b *Broker) forget(agent, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting[agent], key)
	if len(b.waiting[agent]) == 0 {
		delete(b.waiting, agent)
	}
}

// Answer takes an agent's answer. One that nobody waits for is dropped; false
// says so. An agent that does not send the correlation back answers the oldest
// question of that name and type.
func (b *Broker) Answer(a *manager.DNSAgentResponse) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	agent, q := a.GetSession().GetSessionId(), a.GetRequest()
	key := q.GetSession().GetManagerInstallId()
	w := b.waiting[agent][key]
	if key == "" {
		w, key = b.oldest(agent, q)
	}
	if w == nil || w.question.GetName() != q.GetName() || w.question.GetType() != q.GetType() {
		b.dropped.Add(1)
		return false
	}
	delete(b.waiting[agent], key)
	b.answered.Add(1)
	w.answer <- a.GetResponse() // has room: it is asked once
	return true
}

// oldest finds the oldest question of an agent that is like another; b.mu is
// held.
func (b *Broker) oldest(agent string, q *manager.DNSRequest) (found *wait, key string) {
	least := uint64(0)
	for k, w := range b.waiting[agent] {
		n, err := strconv.ParseUint(k, 36, 64)
		if err == nil && w.question.GetName() == q.GetName() && w.question.GetType() == q.GetType() && (found == nil || n < least) {
			found, key, least = w, k, n
		}
	}
	return found, key
}

// Stats count the questions that were handed to agents, those that were answered,
// and the questions and answers that were dropped.
type Stats struct{ Asked, Answered, Dropped uint64 }

// Stats returns the counters.
func (b *Broker) Stats() Stats {
	return Stats{Asked: b.asked.Load(), Answered: b.answered.Load(), Dropped: b.dropped.Load()}
}
