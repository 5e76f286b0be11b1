package pki

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// nextKeyFile holds the key of the next leaf: from before it is asked for until
// it is in place. Whoever asks again after a crash asks for the same key and so
// gets the same certificate.
const nextKeyFile = "tls.key.next"

// lockFile keeps processes that share a bundle from renewing it at once.
const lockFile = ".lock"

// Signed is what a CA answers to a request.
type Signed struct {
	// Chain is leaf and issuing CA, Roots the trusted roots, both PEM.
	Chain, Roots []byte
}

// SignFunc asks for a certificate.
type SignFunc func(ctx context.Context, csrPEM []byte) (Signed, error)

// Obtain makes the first bundle in dir, which it makes if need be: a key is
// drawn, sign is asked for its certificate, and all is written. The key is kept
// from before the question, so that a repetition after a crash or a lost answer
// asks for the same one.
func Obtain(ctx context.Context, dir string, sign SignFunc) (*Bundle, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	unlock, err := lock(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	keyPEM, csrPEM, err := nextKey(dir)
	if err != nil {
		return nil, err
	}
	b, err := ask(ctx, sign, csrPEM, keyPEM, dir)
	if err != nil {
		return nil, err
	}
	if err := b.replace(dir, nil); err != nil {
		return nil, err
	}
	return b, nil
}

// Renew gets the next certificate, with a new key, and puts it in use. When
// another process that shares the files has done so meanwhile, theirs is taken.
// A bundle that cannot be written is used all the same, and the error says so
// with ReasonNotStored.
func (s *Source) Renew(ctx context.Context, sign SignFunc) error {
	if s.dir == "" {
		csrPEM, keyPEM, err := NewCSR()
		if err != nil {
			return err
		}
		b, err := ask(ctx, sign, csrPEM, keyPEM, "")
		if err != nil {
			return err
		}
		return s.Set(b)
	}
	unlock, err := lock(ctx, s.dir)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return s.renewUnstored(ctx, sign, err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	if b, err := LoadBundle(s.dir); err == nil && b.NotAfter.After(s.Bundle().NotAfter) && s.now().Before(b.RenewAt()) {
		return s.Set(b)
	}
	keyPEM, csrPEM, err := nextKey(s.dir)
	if err != nil {
		return s.renewUnstored(ctx, sign, err)
	}
	b, err := ask(ctx, sign, csrPEM, keyPEM, s.dir)
	if err != nil {
		return err
	}
	if b.ID != s.Bundle().ID {
		return s.Set(b) // says what is wrong
	}
	notStored := b.replace(s.dir, nil)
	if err := s.Set(b); err != nil {
		return err
	}
	if notStored != nil {
		return notStoredError(s.dir, notStored)
	}
	return nil
}

// renewUnstored renews for this process alone.
func (s *Source) renewUnstored(ctx context.Context, sign SignFunc, why error) error {
	csrPEM, keyPEM, err := NewCSR()
	if err != nil {
		return err
	}
	b, err := ask(ctx, sign, csrPEM, keyPEM, s.dir)
	if err != nil {
		return err
	}
	if err := s.Set(b); err != nil {
		return err
	}
	return notStoredError(s.dir, why)
}

func notStoredError(dir string, cause error) error {
	return errs.New(codes.FailedPrecondition, ReasonNotStored,
		"the certificate was renewed for this process, but not written to %s: %w", dir, cause).
		WithHint("make the directory writable, or a restart falls back to the certificate in it")
}

// ask asks for a certificate and makes a bundle of the answer.
func ask(ctx context.Context, sign SignFunc, csrPEM, keyPEM []byte, dir string) (*Bundle, error) {
	signed, err := sign(ctx, csrPEM)
	if err != nil {
		return nil, err
	}
	b, err := parseBundle(signed.Roots, signed.Chain, keyPEM, dir)
	if err != nil {
		return nil, fmt.Errorf("use the certificate that was issued: %w", err)
	}
	return b, nil
}

// nextKey returns the key that the next certificate in dir is for, and makes
// it first if there is none, with a request for it.
func nextKey(dir string) (keyPEM, csrPEM []byte, err error) {
	path := filepath.Join(dir, nextKeyFile)
	if keyPEM, err = os.ReadFile(path); err == nil {
		// A broken one is nobody's: it was never answered for.
		if key, err := parseKey(keyPEM, path); err == nil {
			csrPEM, err := requestFor(key)
			return keyPEM, csrPEM, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read the next key: %w", err)
	}
	if csrPEM, keyPEM, err = NewCSR(); err != nil {
		return nil, nil, err
	}
	if err := writeFile(path, keyPEM); err != nil {
		return nil, nil, err
	}
	return keyPEM, csrPEM, syncDir(dir)
}

// replace puts b in the place of what is in dir. Its key must be in
// nextKeyFile. A crash after any step leaves a bundle that LoadBundle can read:
// until the chain is there the old one, then the new one. step, if set, is told
// what was done and may end it.
func (b *Bundle) replace(dir string, step func(string) error) error {
	if step == nil {
		step = func(string) error { return nil }
	}
	next, key := filepath.Join(dir, nextKeyFile), filepath.Join(dir, KeyFile)
	for _, s := range []struct {
		name string
		do   func() error
	}{
		// For a bundle that was not there yet: a key without its chain.
		{"key", func() error {
			if _, err := os.Lstat(key); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return writeFile(key, b.keyPEM)
		}},
		{"roots", func() error { return writeFile(filepath.Join(dir, RootFile), b.rootPEM) }},
		{"chain", func() error { return writeFile(filepath.Join(dir, ChainFile), b.ChainPEM()) }},
		{"sync", func() error { return syncDir(dir) }},
		{"next", func() error { return os.Rename(next, key) }},
	} {
		if err := s.do(); err != nil {
			return fmt.Errorf("replace bundle in %s: %w", dir, err)
		}
		if err := step(s.name); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

// completeReplace reads a bundle whose chain is newer than its key: the key is
// in nextKeyFile then. mismatch is what to say if it is not.
func completeReplace(dir string, rootPEM, chainPEM []byte, mismatch error) (*Bundle, error) {
	next := filepath.Join(dir, nextKeyFile)
	keyPEM, err := os.ReadFile(next)
	if err != nil {
		return nil, mismatch
	}
	b, err := parseBundle(rootPEM, chainPEM, keyPEM, dir)
	if err != nil {
		return nil, mismatch
	}
	// Whoever may only read leaves the rest to the owner.
	if err := os.Rename(next, filepath.Join(dir, KeyFile)); err == nil {
		return b, syncDir(dir)
	}
	return b, nil
}

// lockPoll is how often a lock that another process holds is tried again; the
// kernel gives no event that a context could end the wait for.
const lockPoll = 20 * time.Millisecond

// lock takes the lock of a bundle's directory; it ends with the process that
// holds it.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock bundle: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // which unlocks it
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock bundle in %s: %w", dir, err), f.Close())
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another process that renews the bundle in %s: %w", dir, ctx.Err()), f.Close())
		}
	}
}
