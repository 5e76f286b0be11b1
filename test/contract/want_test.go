package contract

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/proto/telepresence/manager"
	"trivet/test/peersim"
)

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// wants checks a status with its exact text.
func (s *site) wants(err error, code codes.Code, format string, args ...any) {
	s.Helper()
	text := fmt.Sprintf(format, args...)
	if got := status.Convert(err); got.Code() != code || got.Message() != text {
		s.Errorf("%s %q, want %s %q", got.Code(), got.Message(), code, text)
	}
}

// wantsCode checks a status whose text the contract leaves open.
func (s *site) wantsCode(err error, code codes.Code) {
	s.Helper()
	if got := status.Convert(err); got.Code() != code {
		s.Errorf("%s %q, want %s", got.Code(), got.Message(), code)
	}
}

// same compares messages.
func same[M any](s *site, want, got M) {
	s.Helper()
	if d := cmp.Diff(want, got, protocmp.Transform(), protocmp.SortRepeated(func(a, b string) bool { return a < b })); d != "" {
		s.Errorf("(-want +got):\n%s", d)
	}
}

// recv is a stream's next message.
func recv[M any](s *site, stream grpc.ServerStreamingClient[M]) *M {
	s.Helper()
	m, err := stream.Recv()
	s.must(err)
	return m
}

// until receives until is holds; messages in between are allowed.
func until[M any](s *site, stream grpc.ServerStreamingClient[M], what string, is func(*M) bool) *M {
	s.Helper()
	var last *M
	for {
		m, err := stream.Recv()
		if err != nil {
			s.Fatalf("%s: %v; the last message was %v", what, err, last)
		}
		if last = m; is(m) {
			return m
		}
	}
}

// ends receives until the stream ends, and wants a status of it.
func ends[M any](s *site, stream grpc.ServerStreamingClient[M], code codes.Code) {
	s.Helper()
	for {
		_, err := stream.Recv()
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		s.wantsCode(err, code)
		return
	}
}

// refused is the status of a stream's first receive.
func refused[M any](s *site, stream grpc.ServerStreamingClient[M], err error) error {
	s.Helper()
	s.must(err)
	_, err = stream.Recv()
	return err
}

// states lists intercepts as "name=STATE", by id.
func states(list []*manager.InterceptInfo) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.GetSpec().GetName() + "=" + v.GetDisposition().String()
	}
	return strings.Join(out, " ")
}

// shows matches a snapshot of intercepts.
func shows(want string) func(*manager.InterceptInfoSnapshot) bool {
	return func(m *manager.InterceptInfoSnapshot) bool { return states(m.GetIntercepts()) == want }
}

// pods lists agents by their pods.
func pods(m *manager.AgentInfoSnapshot) string {
	var out []string
	for _, a := range m.GetAgents() {
		out = append(out, a.GetPodName())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// sees waits for an event of a peer.
func (s *site) sees(r interface {
	Since(uint64) []peersim.Event
}, wait func() error,
) {
	s.Helper()
	if err := wait(); err != nil {
		s.Fatalf("%v; the peer's record: %v", err, r.Since(0))
	}
}

// await waits for an event of a peer from mark on.
func (s *site) await(r *peersim.Record, mark uint64, is func(peersim.Event) bool) (peersim.Event, uint64) {
	s.Helper()
	var e peersim.Event
	var next uint64
	s.sees(r, func() (err error) {
		e, next, err = r.Wait(s.ctx, mark, is)
		return err
	})
	return e, next
}
