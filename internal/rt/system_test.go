package rt

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func TestShutdownStopsTheTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSystem(Options{})
		var log journal[string]
		g := mustGroup(t, s, "g", GroupPolicy{})
		for i := range 3 {
			mustSpawn(t, g, script[int]{
				stop: func(c *Ctx[int], _ Reason) { log.add(c.Name()) },
			}.spec(fmt.Sprintf("a%d", i)))
		}
		synctest.Wait() // one that has not started yet has nothing to stop
		shutdown(t, s)
		shutdown(t, s) // again is no error
		wantEqual(t, "stopped", len(log.all()), 3)
		wantErr(t, "group", g.Err(), ErrStopped)
		for kind, st := range s.Stats().Kinds {
			wantEqual(t, kind+" Live", st.Live, 0)
		}
	})
}

func TestLibraryLogsAreDemoted(t *testing.T) {
	var out logBuffer
	log := slog.New(libraryHandler{out.logger(slog.LevelDebug).Handler()}).
		With("a", 1).WithGroup("g").With("b", 2)
	log.Info("info")
	log.Error("error")
	got := out.String()
	for _, want := range []string{"level=DEBUG msg=info a=1 g.b=2", "level=ERROR msg=error a=1 g.b=2"} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %q:\n%s", want, got)
		}
	}
}

func TestReasonString(t *testing.T) {
	var got []string
	for _, r := range []Reason{ReasonStopped, ReasonRestarting, ReasonFailed, 9} {
		got = append(got, r.String())
	}
	if diff := cmp.Diff([]string{"stopped", "restarting", "failed", "Reason(9)"}, got); diff != "" {
		t.Errorf("strings (-want +got):\n%s", diff)
	}
}
