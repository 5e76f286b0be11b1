package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// Step is one fault of a schedule. Whom it is about is chosen when it begins:
// "leader" and "follower" are what they are then.
type Step struct {
	N     int    `json:"n"`
	Fault string `json:"fault"`
	// Target is leader, follower or the place of a server.
	Target string `json:"target,omitempty"`
	// Way is a variant of the fault.
	Way string `json:"way,omitempty"`
	// Size is its strength, in the fault's own unit.
	Size float64 `json:"size,omitempty"`
	// Hold is how long it lasts at least, Pause the time until the next one,
	// milliseconds.
	Hold  int64 `json:"holdMs"`
	Pause int64 `json:"pauseMs"`
}

func (s Step) hold() time.Duration { return time.Duration(s.Hold) * time.Millisecond }

// String names the step for people.
func (s Step) String() string {
	parts := []string{s.Fault}
	for _, p := range []string{s.Target, s.Way} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if s.Size != 0 {
		parts = append(parts, fmt.Sprintf("%.3g", s.Size))
	}
	return fmt.Sprintf("#%d %s for %s", s.N, strings.Join(parts, " "), s.hold())
}

// scheduler draws steps: all kinds in a random order, then again in another.
type scheduler struct {
	rnd   *rand.Rand
	kinds []kind
	left  []kind
	n     int
}

func newScheduler(seed uint64, kinds []kind) *scheduler {
	return &scheduler{rnd: rand.New(rand.NewPCG(seed, 0)), kinds: kinds}
}

func (s *scheduler) next() Step {
	if len(s.left) == 0 {
		s.left = slices.Clone(s.kinds)
		s.rnd.Shuffle(len(s.left), func(i, j int) { s.left[i], s.left[j] = s.left[j], s.left[i] })
	}
	k := s.left[0]
	s.left = s.left[1:]
	s.n++
	step := Step{N: s.n, Fault: k.name, Hold: between(s.rnd, 2000, 5000), Pause: between(s.rnd, 200, 1500)}
	if len(k.targets) > 0 {
		step.Target = k.targets[s.rnd.IntN(len(k.targets))]
	}
	if len(k.ways) > 0 {
		step.Way = k.ways[s.rnd.IntN(len(k.ways))]
	}
	if k.size != nil {
		step.Size = k.size(s.rnd)
	}
	return step
}

func between(r *rand.Rand, from, to int64) int64 { return from + r.Int64N(to-from+1) }

// uniform draws from a range.
func uniform(from, to float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return from + r.Float64()*(to-from) }
}

// replayer gives the steps of a recorded schedule.
type replayer struct{ steps []Step }

// readSchedule reads the steps that an earlier run wrote.
func readSchedule(path string) (*replayer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the schedule: %w", err)
	}
	defer f.Close()
	r := &replayer{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var s Step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("read the schedule %s, line %d: %w", path, len(r.steps)+1, err)
		}
		r.steps = append(r.steps, s)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the schedule %s: %w", path, err)
	}
	return r, nil
}
