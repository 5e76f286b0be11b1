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
	for f.StoreHang {
		time.Sleep(lookEvery)
		f = current()
	}
	if f.StoreDelay > 0 {
		time.Sleep(f.StoreDelay)
	}
	if f.StoreError != "" {
		return errors.New(f.StoreError)
	}
	return nil
}

// Now is the wall clock.
func Now() time.Time { return time.Now().Add(current().ClockOffset) }
