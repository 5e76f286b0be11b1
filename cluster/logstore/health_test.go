package logstore

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSpaceOfTheFileSystem(t *testing.T) {
	const gib = 1 << 30
	for name, x := range map[string]struct {
		answer sample
		reason string
	}{
		"room":             {sample{free: 10 * gib, total: 100 * gib}, ""},
		"under 5 %":        {sample{free: 4 * gib, total: 100 * gib}, ReasonDiskFull},
		"under 64 MiB":     {sample{free: 60 << 20, total: 500 << 20}, ReasonDiskFull},
		"it cannot answer": {sample{err: errors.New("stale handle")}, ReasonWriteFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := sickStore(t)
				s.space.close()
				s.space = watchSpace(func() sample { return x.answer })
				p := s.Problems()
				if x.reason == "" && len(p) == 0 {
					return
				}
				if len(p) != 1 || p[0].Reason != x.reason || p[0].Hint == "" {
					t.Errorf("problems %+v", p)
				}
			})
		})
	}
}

func TestFileSystemThatDoesNotAnswerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := sickStore(t)
		s.space.close()
		hang, first := make(chan struct{}), true
		s.space = watchSpace(func() sample {
			if !first {
				<-hang
			}
			first = false
			return sample{free: 1 << 40, total: 1 << 40}
		})
		time.Sleep(lookEvery + lookLate + time.Second)
		if p := s.Problems(); len(p) != 1 || p[0].Reason != ReasonDiskHung {
			t.Errorf("problems %+v", p)
		}
		close(hang)
		synctest.Wait()
		if p := s.Problems(); len(p) != 0 {
			t.Errorf("problems %+v after it answered", p)
		}
	})
}
