//go:build chaos

package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Enabled says that this binary can be disturbed.
const Enabled = true

// lookEvery is how often the file is looked at; it is not read more often.
const lookEvery = 5 * time.Millisecond

var state struct {
	sync.Mutex
	looked time.Time
	faults Faults
	// seen counts, told is what was written of it.
	seen, told Seen
}

// note counts something. What is rare, or the first of its kind, is told at
// once: the process may be hung or killed next. The rest is told with the next
// look.
func note(count func(*Seen)) {
	state.Lock()
	defer state.Unlock()
	was := state.seen
	count(&state.seen)
	is := state.seen
	if was.Clock != is.Clock || was.Hung != is.Hung || was.Delayed == 0 && is.Delayed > 0 || was.Failed == 0 && is.Failed > 0 {
		tell()
	}
}

// tell writes what was seen; state is locked.
func tell() {
	path := os.Getenv("TRIVET_FAULTS")
	if path == "" || state.seen == state.told {
		return
	}
	raw, err := json.Marshal(state.seen)
	if err == nil {
		next := path + SeenSuffix + ".next"
		if err = os.WriteFile(next, raw, 0o600); err == nil {
			err = os.Rename(next, path+SeenSuffix)
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "tell which faults were seen: %v\n", err)
		os.Exit(1)
	}
	state.told = state.seen
}

// current reads the file. One that cannot be understood ends the process: a
// chaos test that believes it disturbs and does not is worse than none.
func current() Faults {
	state.Lock()
	defer state.Unlock()
	if time.Since(state.looked) < lookEvery {
		return state.faults
	}
	state.looked = time.Now()
	tell()
	state.faults = Faults{}
	path := os.Getenv("TRIVET_FAULTS")
	if path == "" {
		return state.faults
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return state.faults
	}
	if err == nil {
		err = json.Unmarshal(b, &state.faults)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "read the faults from %s: %v\n", path, err)
		os.Exit(1)
	}
	return state.faults
}

// Store is called before a write of log entries; an error replaces the write.
func Store() error {
	f := current()
	if f.StoreHang {
		note(func(s *Seen) { s.Hung++ })
	}
	for f.StoreHang {
		time.Sleep(lookEvery)
		f = current()
	}
	if f.StoreDelay > 0 {
		note(func(s *Seen) { s.Delayed++ })
		time.Sleep(f.StoreDelay)
	}
	if f.StoreError != "" {
		note(func(s *Seen) { s.Failed++ })
		return errors.New(f.StoreError)
	}
	return nil
}

// Now is the wall clock.
func Now() time.Time {
	offset := current().ClockOffset
	if offset != 0 {
		note(func(s *Seen) { s.Clock++ })
	}
	return time.Now().Add(offset)
}
