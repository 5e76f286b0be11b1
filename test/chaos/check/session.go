package check

import "time"

// Span is a call that was answered well.
type Span struct {
	Call   int64 `json:"call"`
	Return int64 `json:"return"`
}

// Life is what one session's peer and its observers saw of it.
type Life struct {
	ID string `json:"id"`
	// Period is how long the session is owed after each sign of life.
	Period time.Duration `json:"period"`
	// Signs are the acknowledged signs of life: arrival and Remain.
	Signs []Span `json:"signs"`
	// DepartCall is when its peer first asked for its end, 0: never; Departed
	// when that was acknowledged, 0: never.
	DepartCall int64 `json:"departCall,omitempty"`
	Departed   int64 `json:"departed,omitempty"`
	// Gone are the times at which somebody learned that it was gone.
	Gone []int64 `json:"gone,omitempty"`
}

// Lag is how long after an acknowledged departure a server that has not heard
// of it may take the session for alive. A server answers for a session that it
// knows without asking the leader, so that this is no linearizable look.
const Lag = 2 * time.Second

// Expiry wants every session to live for its period after each sign of life
// that was acknowledged, unless its peer asked for its end, and to stay gone
// once that was acknowledged, but for Lag.
func Expiry(lives []Life) []Violation {
	r := report{checker: "expiry"}
	for _, l := range lives {
		for _, gone := range l.Gone {
			if l.DepartCall != 0 && l.DepartCall <= gone {
				continue
			}
			for _, s := range l.Signs {
				// The leader's clock began at the call or later, and the end
				// was not after it was learned of: no tolerance is needed.
				if left := s.Call + int64(l.Period) - gone; s.Call <= gone && left > 0 {
					r.add("session %s was gone at %s, %s before the end of its period of %s: its last sign of life was acknowledged at %s",
						l.ID, millis(gone), time.Duration(left), l.Period, millis(s.Return))
					break
				}
			}
		}
		for _, s := range l.Signs {
			if l.Departed != 0 && s.Call > l.Departed+int64(Lag) {
				r.add("session %s departed at %s and was alive at %s", l.ID, millis(l.Departed), millis(s.Return))
				break
			}
		}
	}
	return r.violations()
}
