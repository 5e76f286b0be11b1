package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// InstallID returns the id of this installation, which the manager shows
// beside a session. It lives in the file "install-id" in dir, the folder of
// the context file, and is made on first use. Two processes that make it at
// the same time agree.
func InstallID(dir string) (string, error) {
	path := filepath.Join(dir, "install-id")
	if id, ok := readInstallID(path); ok {
		return id, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the folder of the install id: %w", err)
	}
	id := uuid.NewString()
	tmp, err := os.CreateTemp(dir, ".install-id.*")
	if err != nil {
		return "", fmt.Errorf("write install id: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(id + "\n")
	if err := errors.Join(err, tmp.Close()); err != nil {
		return "", fmt.Errorf("write install id: %w", err)
	}
	// Linking fails if the file is there, so the first one wins and everybody
	// reads a whole file.
	err = os.Link(tmp.Name(), path)
	if errors.Is(err, fs.ErrExist) {
		if won, ok := readInstallID(path); ok {
			return won, nil
		}
		err = os.Rename(tmp.Name(), path) // it was damaged
	}
	if err != nil {
		return "", fmt.Errorf("write install id: %w", err)
	}
	return id, nil
}

func readInstallID(path string) (string, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", false
	}
	id, err := uuid.Parse(strings.TrimSpace(string(data)))
	return id.String(), err == nil
}

// UserName returns user@host, the name under which a session is shown.
func UserName(getenv func(string) string) string {
	name := getenv("USER")
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if name == "" {
		name = "unknown"
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	return name + "@" + host
}
