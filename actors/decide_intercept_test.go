package actors

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	manager "trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	dispActive  = manager.InterceptDispositionType_ACTIVE
	dispWaiting = manager.InterceptDispositionType_WAITING
	dispNoAgent = manager.InterceptDispositionType_NO_AGENT
	dispError   = manager.InterceptDispositionType_AGENT_ERROR

	ownerPresent  = commandv1.OwnerState_OWNER_STATE_PRESENT
	ownerAway     = commandv1.OwnerState_OWNER_STATE_AWAY
	ownerRearming = commandv1.OwnerState_OWNER_STATE_REARMING
)

func TestDecideIntercept(t *testing.T) {
	lim := DefaultLimits()
	wall := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	row := func(d manager.InterceptDispositionType, o commandv1.OwnerState) *commandv1.InterceptRow {
		return &commandv1.InterceptRow{Id: "c:web", Disposition: d, OwnerState: o, Message: "m", ModifyRevision: 9}
	}
	leased := func(left time.Duration, d manager.InterceptDispositionType, o commandv1.OwnerState) *commandv1.InterceptRow {
		r := row(d, o)
		r.LeaseUntil = wall.Add(left).UnixNano()
		return r
	}
	here := func(since instant) interceptEvent {
		return interceptEvent{Owner: owner{Present: true, Since: since}, Wall: wall}
	}
	gone := func(since instant) interceptEvent {
		return interceptEvent{Owner: owner{Since: since}, Wall: wall}
	}
	answered := func(ev interceptEvent, o outcome) interceptEvent {
		ev.Answer = o
		return ev
	}
	// seen is the memory after a look at a row that was there from the start.
	seen := func(d manager.InterceptDispositionType) interceptMemory {
		return interceptMemory{Known: true, Disposition: d}
	}
	asked := func(m interceptMemory, revision uint64) interceptMemory {
		m.Asked = revision
		return m
	}
	failed := func(m interceptMemory, n int, retryAt instant) interceptMemory {
		m.Failures, m.RetryAt = n, retryAt
		return m
	}
	pause := backoff(&lim, "c:web", 1)

	for _, tc := range []struct {
		name    string
		row     *commandv1.InterceptRow
		mem     interceptMemory
		now     instant
		ev      interceptEvent
		want    interceptMemory
		set     commandv1.OwnerState // wanted owner state; unspecified: no command
		remove  bool
		wake    time.Duration
		effects []effect
		done    bool
	}{
		{
			name: "owner there, nothing to do",
			row:  row(dispActive, ownerPresent), now: at(30), ev: here(at(1)), want: seen(dispActive),
		},
		{
			name: "after a failover no owner is judged for 10 s",
			row:  row(dispActive, ownerPresent), now: at(6), ev: gone(0), want: seen(dispActive), wake: 4 * time.Second,
		},
		{
			name: "then it is",
			row:  row(dispActive, ownerPresent), now: at(10), ev: gone(0),
			want: asked(seen(dispActive), 9), set: ownerAway, effects: []effect{effectOwnerAway},
		},
		{
			name: "owner lost: 5 s of grace",
			row:  row(dispActive, ownerPresent), now: at(34), ev: gone(at(30)), want: seen(dispActive), wake: time.Second,
		},
		{
			name: "owner lost for 5 s",
			row:  row(dispActive, ownerPresent), now: at(35), ev: gone(at(30)),
			want: asked(seen(dispActive), 9), set: ownerAway, effects: []effect{effectOwnerAway},
		},
		{
			name: "owner lost while agents have yet to decide",
			row:  row(dispWaiting, ownerPresent), now: at(35), ev: gone(at(30)),
			want: asked(seen(dispWaiting), 9), set: ownerAway, effects: []effect{effectOwnerAway},
		},
		{
			name: "owner lost again while re-arming",
			row:  row(dispActive, ownerRearming), now: at(35), ev: gone(at(30)),
			want: asked(seen(dispActive), 9), set: ownerAway, effects: []effect{effectOwnerAway},
		},
		{
			name: "nothing to take back without an agent",
			row:  row(dispNoAgent, ownerPresent), now: at(60), ev: gone(at(30)), want: seen(dispNoAgent),
		},
		{
			name: "an error state is left alone",
			row:  row(dispError, ownerPresent), now: at(60), ev: gone(at(30)), want: seen(dispError),
		},
		{
			name: "agent comes while the owner has long been lost",
			row:  row(dispWaiting, ownerPresent), mem: seen(dispNoAgent), now: at(60), ev: gone(at(30)),
			want: asked(seen(dispWaiting), 9), set: ownerAway, effects: []effect{effectAgentsBack, effectOwnerAway},
		},
		{
			name: "a new intercept gives its owner the grace from its creation",
			row:  row(dispWaiting, ownerPresent), mem: interceptMemory{FirstSeen: at(100)}, now: at(101), ev: gone(0),
			want: interceptMemory{FirstSeen: at(100), Known: true, Disposition: dispWaiting}, wake: 4 * time.Second,
		},
		{
			name: "away already",
			row:  row(dispActive, ownerAway), now: at(60), ev: gone(at(30)), want: seen(dispActive),
		},
		{
			name: "owner back: an agent has to approve again",
			row:  row(dispActive, ownerAway), now: at(60), ev: here(at(59)),
			want: asked(seen(dispActive), 9), set: ownerRearming, effects: []effect{effectOwnerBack},
		},
		{
			name: "owner back: no agent had approved",
			row:  row(dispWaiting, ownerAway), now: at(60), ev: here(at(59)),
			want: asked(seen(dispWaiting), 9), set: ownerPresent, effects: []effect{effectOwnerBack},
		},
		{
			name: "owner back right after a failover is believed at once",
			row:  row(dispActive, ownerAway), now: at(1), ev: here(at(1)),
			want: asked(seen(dispActive), 9), set: ownerRearming, effects: []effect{effectOwnerBack},
		},
		{
			name: "re-arming is the agents' business",
			row:  row(dispActive, ownerRearming), now: at(600), ev: here(at(59)), want: seen(dispActive),
		},
		{
			name: "waiting for long is left alone",
			row:  row(dispWaiting, ownerPresent), now: at(6000), ev: here(at(1)), want: seen(dispWaiting),
		},
		{
			name: "lease runs",
			row:  leased(30*time.Second, dispActive, ownerPresent), now: at(60), ev: here(at(1)),
			want: seen(dispActive), wake: 30 * time.Second,
		},
		{
			name: "a long lease is looked at every minute",
			row:  leased(3*time.Hour, dispActive, ownerPresent), now: at(60), ev: here(at(1)),
			want: seen(dispActive), wake: time.Minute,
		},
		{
			name: "the sooner of lease and grace",
			row:  leased(2*time.Second, dispActive, ownerPresent), now: at(32), ev: gone(at(30)),
			want: seen(dispActive), wake: 2 * time.Second,
		},
		{
			name: "lease ended, whatever the owner does",
			row:  leased(0, dispNoAgent, ownerAway), now: at(60), ev: gone(at(1)),
			want: asked(seen(dispNoAgent), 9), remove: true, set: ownerAway, effects: []effect{effectLeaseEnded},
		},
		{
			name: "one command at a time",
			row:  row(dispActive, ownerPresent), mem: asked(seen(dispActive), 9), now: at(60), ev: gone(at(30)),
			want: asked(seen(dispActive), 9),
		},
		{
			name: "applied: the new row needs nothing",
			row:  row(dispActive, ownerAway), mem: asked(seen(dispActive), 8), now: at(60),
			ev: answered(gone(at(30)), outcomeApplied), want: seen(dispActive),
		},
		{
			name: "the owner came back meanwhile: decided at once",
			row:  row(dispActive, ownerAway), mem: asked(seen(dispActive), 8), now: at(60),
			ev:   answered(here(at(59)), outcomeApplied),
			want: asked(seen(dispActive), 9), set: ownerRearming, effects: []effect{effectOwnerBack},
		},
		{
			name: "refused because the row had changed: decided at once",
			row:  row(dispWaiting, ownerPresent), mem: asked(seen(dispActive), 8), now: at(60),
			ev:   answered(gone(at(30)), outcomeRefused),
			want: asked(seen(dispWaiting), 9), set: ownerAway, effects: []effect{effectOwnerAway},
		},
		{
			name: "refused for no reason we see: not in a loop",
			row:  row(dispActive, ownerPresent), mem: asked(seen(dispActive), 9), now: at(60),
			ev:   answered(gone(at(30)), outcomeRefused),
			want: failed(seen(dispActive), 1, at(60).add(pause)), wake: pause,
		},
		{
			name: "unknown outcome: looked at again after a pause",
			row:  row(dispActive, ownerPresent), mem: asked(seen(dispActive), 9), now: at(60),
			ev:   answered(gone(at(30)), outcomeUnknown),
			want: failed(seen(dispActive), 1, at(60).add(pause)), wake: pause,
		},
		{
			name: "unknown outcome that had taken effect",
			row:  row(dispActive, ownerAway), mem: asked(seen(dispActive), 8), now: at(60),
			ev:   answered(gone(at(30)), outcomeUnknown),
			want: failed(seen(dispActive), 0, at(60).add(pause)),
		},
		{
			name: "a hint does not cut the pause short",
			row:  row(dispActive, ownerPresent), mem: failed(seen(dispActive), 1, at(61)), now: at(60), ev: gone(at(30)),
			want: failed(seen(dispActive), 1, at(61)), wake: time.Second,
		},
		{
			name: "after the pause",
			row:  row(dispActive, ownerPresent), mem: failed(seen(dispActive), 1, at(61)), now: at(61), ev: gone(at(30)),
			want: asked(failed(seen(dispActive), 1, at(61)), 9), set: ownerAway, // noted the first time
		},
		{
			name: "agents lost is noted",
			row:  row(dispNoAgent, ownerPresent), mem: seen(dispActive), now: at(60), ev: here(at(1)),
			want: seen(dispNoAgent), effects: []effect{effectAgentsLost},
		},
		{
			name: "gone",
			mem:  seen(dispActive), now: at(60), ev: gone(0), want: seen(dispActive), done: true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, d := decideIntercept(tc.row, tc.mem, tc.now, tc.ev, &lim)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("memory differs (-want +got):\n%s", diff)
			}
			want := decision{Wake: tc.wake, Effects: tc.effects, Done: tc.done}
			if tc.set != 0 || tc.remove {
				want.Commands = []*commandv1.Command{{Op: &commandv1.Command_SetIntercept{
					SetIntercept: &commandv1.SetIntercept{
						Id: tc.row.Id, SeenModifyRevision: tc.row.ModifyRevision,
						Disposition: tc.row.Disposition, Message: tc.row.Message,
						OwnerState: tc.set, Remove: tc.remove,
					},
				}}}
			}
			if diff := cmp.Diff(want, d, protocmp.Transform()); diff != "" {
				t.Errorf("decision differs (-want +got):\n%s", diff)
			}
		})
	}
}
