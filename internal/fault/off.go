//go:build !chaos

package fault

import "time"

// Enabled says that this binary can be disturbed.
const Enabled = false

// Store is called before a write of log entries; an error replaces the write.
func Store() error { return nil }

// Now is the wall clock.
func Now() time.Time { return time.Now() }
