package actors

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	agentKind  = commandv1.SessionKind_SESSION_KIND_AGENT
	clientKind = commandv1.SessionKind_SESSION_KIND_CLIENT
	older      = commandv1.Generation_GENERATION_OLDER
	newer      = commandv1.Generation_GENERATION_NEWER
)

// at is the instant so many seconds after the leader's start.
func at(seconds float64) instant { return instant(seconds * float64(time.Second)) }

func TestDecideSession(t *testing.T) {
	lim := DefaultLimits()
	agent := &commandv1.SessionRow{Id: "agent:1", Kind: agentKind, Generation: newer, ModifyRevision: 7}
	oldAgent := &commandv1.SessionRow{Id: "agent:2", Kind: agentKind, Generation: older, ModifyRevision: 7}
	client := &commandv1.SessionRow{Id: "c", Kind: clientKind, ModifyRevision: 7}
	looked := sessionEvent{Kind: sessionLooked}

	for _, tc := range []struct {
		name string
		row  *commandv1.SessionRow
		mem  sessionMemory
		now  instant
		ev   sessionEvent
		want sessionMemory
		// expire or wake or done, whichever is set
		expire bool
		wake   time.Duration
		done   bool
	}{
		{
			name: "young agent waits for its deadline",
			row:  agent, mem: sessionMemory{Mark: at(10)}, now: at(20), ev: looked,
			want: sessionMemory{Mark: at(10)}, wake: 60*time.Second + 1,
		},
		{
			name: "exactly at the horizon it lives",
			row:  agent, mem: sessionMemory{Mark: at(10)}, now: at(80), ev: looked,
			want: sessionMemory{Mark: at(10)}, wake: 1,
		},
		{
			name: "just past it, it is expired as seen",
			row:  agent, mem: sessionMemory{Mark: at(10)}, now: at(80) + 1, ev: looked,
			want: sessionMemory{Mark: at(10), Asked: 7}, expire: true,
		},
		{
			name: "an older agent has 15 s",
			row:  oldAgent, mem: sessionMemory{Mark: at(10)}, now: at(25), ev: looked,
			want: sessionMemory{Mark: at(10)}, wake: 1,
		},
		{
			name: "and no more",
			row:  oldAgent, mem: sessionMemory{Mark: at(10)}, now: at(25) + 1, ev: looked,
			want: sessionMemory{Mark: at(10), Asked: 7}, expire: true,
		},
		{
			name: "a client has a day",
			row:  client, mem: sessionMemory{Mark: at(10)}, now: at(10 + 86400), ev: looked,
			want: sessionMemory{Mark: at(10)}, wake: 1,
		},
		{
			name: "and no more, streams or not",
			row:  client, mem: sessionMemory{Mark: at(10)}, now: at(10+86400) + 1, ev: looked,
			want: sessionMemory{Mark: at(10), Asked: 7}, expire: true,
		},
		{
			name: "a client that ended its streams keeps its day",
			row:  client, mem: sessionMemory{Mark: at(10)}, now: at(20), ev: sessionEvent{Kind: sessionEnded},
			want: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(20)}, wake: 86390*time.Second + 1,
		},
		{
			name: "a Remain at the last moment saves",
			row:  agent, mem: sessionMemory{Mark: at(10)}, now: at(100), ev: sessionEvent{Kind: sessionTouched, At: at(100)},
			want: sessionMemory{Mark: at(100)}, wake: 70*time.Second + 1,
		},
		{
			name: "activity of long ago does not move the mark back",
			row:  client, mem: sessionMemory{Mark: at(100)}, now: at(110), ev: sessionEvent{Kind: sessionTouched, At: at(50)},
			want: sessionMemory{Mark: at(100)}, wake: 86390*time.Second + 1,
		},
		{
			name: "ended by the peer: 15 s are left",
			row:  agent, mem: sessionMemory{Mark: at(10)}, now: at(20), ev: sessionEvent{Kind: sessionEnded},
			want: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(20)}, wake: 15*time.Second + 1,
		},
		{
			name: "ended by the peer: never more than was left",
			row:  agent, mem: sessionMemory{Mark: at(10)}, now: at(75), ev: sessionEvent{Kind: sessionEnded},
			want: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(75)}, wake: 5*time.Second + 1,
		},
		{
			name: "ended by the peer: a Remain starts the 15 s again",
			row:  agent, mem: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(20)}, now: at(30),
			ev:   sessionEvent{Kind: sessionTouched, At: at(30)},
			want: sessionMemory{Mark: at(30), Ended: true, EndedAt: at(20)}, wake: 15*time.Second + 1,
		},
		{
			name: "ended by the peer and the time is over",
			row:  agent, mem: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(20)}, now: at(35) + 1, ev: looked,
			want: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(20), Asked: 7}, expire: true,
		},
		{
			name: "a stream gives the rest back",
			row:  agent, mem: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(20)}, now: at(34),
			ev:   sessionEvent{Kind: sessionAttached},
			want: sessionMemory{Mark: at(10), EndedAt: at(20)}, wake: 46*time.Second + 1,
		},
		{
			name: "a changed row is a sign of life",
			row:  agent, mem: sessionMemory{Mark: at(10), Ended: true, EndedAt: at(20)}, now: at(34),
			ev:   sessionEvent{Kind: sessionChanged},
			want: sessionMemory{Mark: at(34), EndedAt: at(20)}, wake: 70*time.Second + 1,
		},
		{
			name: "inherited: an end does not cut into the first period",
			row:  agent, mem: sessionMemory{Inherited: true}, now: at(5), ev: sessionEvent{Kind: sessionEnded},
			want: sessionMemory{Inherited: true, Ended: true, EndedAt: at(5)}, wake: 65*time.Second + 1,
		},
		{
			name: "inherited and silent: one period",
			row:  agent, mem: sessionMemory{Inherited: true}, now: at(70) + 1, ev: looked,
			want: sessionMemory{Inherited: true, Asked: 7}, expire: true,
		},
		{
			name: "one expiry at a time",
			row:  agent, mem: sessionMemory{Mark: at(10), Asked: 7}, now: at(100), ev: looked,
			want: sessionMemory{Mark: at(10), Asked: 7},
		},
		{
			name: "an unknown outcome is tried again later",
			row:  agent, mem: sessionMemory{Mark: at(10), Asked: 7}, now: at(100),
			ev:   sessionEvent{Kind: sessionAnswered, Outcome: outcomeUnknown},
			want: sessionMemory{Mark: at(10), Failures: 1, RetryAt: at(100).add(backoff(&lim, "agent:1", 1))},
			wake: backoff(&lim, "agent:1", 1),
		},
		{
			name: "later means later",
			row:  agent, mem: sessionMemory{Mark: at(10), Failures: 1, RetryAt: at(101)}, now: at(101), ev: looked,
			want: sessionMemory{Mark: at(10), Failures: 1, RetryAt: at(101), Asked: 7}, expire: true,
		},
		{
			name: "gone",
			mem:  sessionMemory{Mark: at(10), Asked: 7}, now: at(100),
			ev:   sessionEvent{Kind: sessionAnswered, Outcome: outcomeApplied},
			want: sessionMemory{Mark: at(10), Failures: 1}, done: true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, d := decideSession(tc.row, tc.mem, tc.now, tc.ev, &lim)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("memory differs (-want +got):\n%s", diff)
			}
			want := decision{Wake: tc.wake, Done: tc.done}
			if tc.expire {
				want.Commands = []*commandv1.Command{{Op: &commandv1.Command_ExpireSessions{
					ExpireSessions: &commandv1.ExpireSessions{Items: []*commandv1.ExpireSessions_Item{
						{SessionId: tc.row.Id, SeenModifyRevision: tc.row.ModifyRevision},
					}},
				}}}
			}
			if diff := cmp.Diff(want, d, protocmp.Transform()); diff != "" {
				t.Errorf("decision differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBackoffGrowsWithinItsBounds(t *testing.T) {
	lim := DefaultLimits()
	last := time.Duration(0)
	for failures := 1; failures < 100; failures++ {
		d := backoff(&lim, "key", failures)
		if d < last {
			t.Errorf("failure %d: %v is shorter than %v before", failures, d, last)
		}
		if low, high := lim.RetryMin*4/5, lim.RetryMax*6/5; d < low || d > high {
			t.Errorf("failure %d: %v outside %v..%v", failures, d, low, high)
		}
		last = d
	}
	if a, b := backoff(&lim, "a", 3), backoff(&lim, "b", 3); a == b {
		t.Errorf("rows a and b both come back after %v", a)
	}
}
