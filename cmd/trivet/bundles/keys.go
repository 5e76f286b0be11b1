package bundles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"trivet/cluster/identity"
	"trivet/internal/pki"
	"trivet/internal/seal"
)

// keys is what a server's bundle has beyond those of others.
type keys struct {
	ring    *seal.Keyring
	issuing []byte
}

// openKeys reads the seal keys in the CA's directory, and makes the first if
// there is none.
func openKeys(caDir string, ca *pki.CA) (keys, error) {
	ring, err := seal.Load(caDir)
	if errors.Is(err, fs.ErrNotExist) {
		if ring, err = seal.New(); err == nil {
			err = ring.Save(caDir)
		}
	}
	if err != nil {
		return keys{}, err
	}
	issuing, err := identity.SealIssuing(ring, ca)
	return keys{ring: ring, issuing: issuing}, err
}

// write puts the keys into a server's bundle.
func (k keys) write(dir string) error {
	if err := k.ring.Save(dir); err != nil {
		return err
	}
	path := filepath.Join(dir, identity.IssuingFile)
	if err := os.WriteFile(path, k.issuing, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// addTo completes the servers' bundles in dir that have no seal keys: an
// earlier version made none.
func (k keys) addTo(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for bundles: %w", err)
	}
	for _, e := range entries {
		bundle := filepath.Join(dir, e.Name())
		if _, err := os.Stat(filepath.Join(bundle, pki.KeyFile)); err != nil {
			continue
		}
		if _, err := seal.Load(bundle); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := k.write(bundle); err != nil {
			return err
		}
	}
	return nil
}
