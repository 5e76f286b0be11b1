package logstore

import (
	"errors"
	"time"
)

// Kind is how the log is stored. There is one; see the benchmark of this
// package for the other that was looked at.
type Kind string

// Bolt is a B+tree in one file: every write is a copy of the pages it touches
// and two syncs.
const Bolt Kind = "bolt"

// Defaults of a Config.
const (
	DefaultDeadline     = 5 * time.Second
	DefaultSlow         = 100 * time.Millisecond
	DefaultCacheEntries = 512
	DefaultCacheBytes   = 8 << 20
)

// Config of a Store.
type Config struct {
	// Dir holds the log. It is made with mode 0700.
	Dir string
	// Deadline is how long a write may take before the process has to end; 0
	// means DefaultDeadline. Time in which this process did not run at all is
	// not counted.
	Deadline time.Duration
	// Slow is the mean time of a write above which the disk is called slow; 0
	// means DefaultSlow.
	Slow time.Duration
	// CacheEntries and CacheBytes bound the newest entries kept in memory; 0
	// means the defaults.
	CacheEntries, CacheBytes int
	// NoSync skips fsync; for benches only.
	NoSync bool
}

func (c Config) withDefaults() Config {
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	if c.Slow == 0 {
		c.Slow = DefaultSlow
	}
	if c.CacheEntries == 0 {
		c.CacheEntries = DefaultCacheEntries
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var problems []error
	if c.Dir == "" {
		problems = append(problems, errors.New("directory is not set"))
	}
	if c.Deadline < 0 || c.Slow < 0 || c.CacheEntries < 0 || c.CacheBytes < 0 {
		problems = append(problems, errors.New("a bound is negative"))
	}
	return errors.Join(problems...)
}
