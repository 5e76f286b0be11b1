package loglevel_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"trivet/internal/errs"
	"trivet/internal/loglevel"
)

func TestParseKnowsTheNamesOfBothGenerations(t *testing.T) {
	for text, want := range map[string]slog.Level{
		"trace": loglevel.Trace, "Debug": slog.LevelDebug, "INFO": slog.LevelInfo, "warning": slog.LevelWarn, " warn ": slog.LevelWarn, "error": slog.LevelError,
	} {
		if _, level, err := loglevel.Parse(text); err != nil || level != want {
			t.Errorf("%q: %v, %v; want %v", text, level, err, want)
		}
	}
	for _, text := range []string{"", "loud", "debug info"} {
		if _, _, err := loglevel.Parse(text); errs.Reason(err) != loglevel.ReasonUnknown {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestALevelEndsOnTimeAndOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := loglevel.New(slog.LevelInfo)
		is := func(want slog.Level) {
			t.Helper()
			synctest.Wait()
			if got := v.Level(); got != want {
				t.Errorf("level %v, want %v", got, want)
			}
		}
		is(slog.LevelInfo)
		v.Use(slog.LevelDebug, time.Minute)
		time.Sleep(59 * time.Second)
		is(slog.LevelDebug)
		time.Sleep(time.Second)
		is(slog.LevelInfo)

		v.Use(slog.LevelDebug, time.Minute)
		time.Sleep(30 * time.Second)
		v.Use(loglevel.Trace, time.Hour)
		time.Sleep(time.Minute) // the end of the first use
		is(loglevel.Trace)
		v.Use(slog.LevelError, 0)
		time.Sleep(2 * time.Hour)
		is(slog.LevelError)
		v.Reset()
		is(slog.LevelInfo)
	})
}
