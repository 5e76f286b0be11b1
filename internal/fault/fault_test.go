//go:build chaos

package fault_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"trivet/internal/fault"
)

// disturb writes the file of the faults as a test of chaos does.
func disturb(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".next", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

func TestFaultsComeGoAndAreSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults")
	t.Setenv("TRIVET_FAULTS", path)
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	if err := fault.Store(); err != nil {
		t.Fatal(err)
	}
	disturb(t, path, `{"storeError":"no disk","clockOffset":3600000000000}`)
	eventually("the store does not fail", func() bool { err := fault.Store(); return err != nil && err.Error() == "no disk" })
	if ahead := time.Until(fault.Now()); ahead < 59*time.Minute {
		t.Errorf("the clock is %s ahead", ahead)
	}
	disturb(t, path, `{"storeHang":true}`)
	done := make(chan error, 1)
	eventually("the store does not hang", func() bool {
		go func() { done <- fault.Store() }()
		select {
		case <-done:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the hang: %v", err)
	}
	var seen fault.Seen
	raw, err := os.ReadFile(path + fault.SeenSuffix)
	if err == nil {
		err = json.Unmarshal(raw, &seen)
	}
	if err != nil || seen.Failed == 0 || seen.Hung == 0 || seen.Clock == 0 || seen.Delayed != 0 {
		t.Errorf("seen: %+v, %v", seen, err)
	}
}
