package logstore

import (
	"errors"
	"fmt"
	"syscall"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Reasons of the errors of this package.
const (
	// ReasonDiskHung: a write did not end in time.
	ReasonDiskHung = "DISK_HUNG"
	// ReasonCorrupt: what is on disk is not what was written.
	ReasonCorrupt = "LOG_CORRUPT"
	// ReasonWriteFailed: a write failed and Raft cannot go on without it.
	ReasonWriteFailed = "LOG_WRITE_FAILED"
	// ReasonInUse: another process has the log open.
	ReasonInUse = "LOG_IN_USE"
	// ReasonSnapshotCorrupt: the newest snapshot cannot be read.
	ReasonSnapshotCorrupt = "SNAPSHOT_CORRUPT"
)

// ErrCorrupt is in the chain of every error about damaged files.
var ErrCorrupt = errors.New("damaged")

// errClosed: the store was closed.
var errClosed = errors.New("the log store is closed")

// rejoin is what to do with a directory that cannot be trusted any more. Its
// server must not come back under its id: it may have forgotten votes.
const rejoin = "move the data directory aside, have an operator remove this server, and let it join again as a new one"

// corrupt says what in which file is damaged.
func corrupt(file, what string, cause error) error {
	return errs.New(codes.DataLoss, ReasonCorrupt, "%s in %s is damaged: %w", what, file, corruption{cause}).WithHint("%s", rejoin)
}

// corruption makes its cause an ErrCorrupt.
type corruption struct{ cause error }

func (c corruption) Error() string   { return c.cause.Error() }
func (c corruption) Unwrap() []error { return []error{ErrCorrupt, c.cause} }

// panicked is what a library panicked with.
type panicked struct{ value any }

func (p panicked) Error() string {
	return fmt.Sprintf("the library that reads it gave up: %v", p.value)
}

// isFull says whether a write failed for want of room: it can be tried again
// when there is some.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isDisk says whether the disk itself failed. After that nobody knows which of
// the bytes handed to the kernel are on it, and a second fsync says nothing.
func isDisk(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && !isFull(err)
}

func writeFailed(dir, what string, err error) error {
	e := errs.New(codes.Unavailable, ReasonWriteFailed, "write %s in %s: %w", what, dir, err)
	if isFull(err) {
		return e.WithHint("make room on the file system of %s, then start this server again", dir)
	}
	return e.WithHint("look for errors of the disk under %s in the kernel's log; this server ended because nobody knows what was written", dir)
}
