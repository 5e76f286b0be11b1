package logstore

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// childEnv makes the test binary a process that writes to a directory until it
// is killed.
const childEnv = "TRIVET_LOGSTORE_CHILD"

// childMain takes snapshots and stores entries for ever.
func childMain(dir string) {
	err := func() error {
		snaps, err := OpenSnapshots(dir, 2, nil)
		if err != nil {
			return err
		}
		s, err := Open(Config{Dir: dir})
		if err != nil {
			return err
		}
		index, err := s.LastIndex()
		if err != nil {
			return err
		}
		fmt.Println("open")
		for {
			index++
			if err := s.StoreLogs(entries(index, index)); err != nil {
				return err
			}
			if err := s.SetUint64([]byte(keyTerm), index); err != nil {
				return err
			}
			if err := takeSnapshot(snaps, index, snapshotOf(index)); err != nil {
				return err
			}
			if index > 8 {
				if err := s.DeleteRange(1, index-8); err != nil {
					return err
				}
			}
		}
	}()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestKilledAtAnyStepADirectoryOpens kills a process that writes all the time,
// at steps that chance chooses.
func TestKilledAtAnyStepADirectoryOpens(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	before := uint64(0)
	for round := range 12 {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if n, err := out.Read(make([]byte, 8)); n == 0 {
			t.Fatalf("the process did not open the directory: %v, %s", err, stderr.String())
		}
		// Which step this meets is for chance to choose.
		timer := time.NewTimer(time.Duration(7+13*round%40) * time.Millisecond)
		<-timer.C
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("it was not killed")
		}
		if stderr.Len() > 0 {
			t.Fatal(stderr.String())
		}
		snaps, err := OpenSnapshots(dir, 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		index := newest(t, snaps)
		s, err := tryOpen(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		last, err := s.LastIndex()
		term, err2 := s.GetUint64([]byte(keyTerm))
		if err != nil || err2 != nil || last < index || term > last || last < before {
			t.Fatalf("newest snapshot %d, last entry %d (%v), term %d (%v); it was %d before", index, last, err, term, err2, before)
		}
		before = last
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if before < 10 {
		t.Errorf("only %d rounds of writes were done", before)
	}
}
