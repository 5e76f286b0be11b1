package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// errInUse says that another node has the state directory.
var errInUse = errors.New("another node runs with it")

// lockState takes the state directory for this process. Two nodes with one
// would overwrite each other's orders. Closing the file gives it back; so does
// the end of the process.
func lockState(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errs.New(codes.FailedPrecondition, "STATE_IN_USE", "lock state directory %s: %w", dir, errInUse).
			WithHint("stop the other one, or give this one a stateDir of its own")
	}
	return nil, fmt.Errorf("lock state directory %s: %w", dir, err)
}
