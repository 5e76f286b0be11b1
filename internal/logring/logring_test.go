package logring

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestNewestRecordsStay(t *testing.T) {
	r := New(1000)
	log := slog.New(r.Handler(slog.DiscardHandler, slog.LevelInfo)).With("server", "server-1")
	for i := range 100 {
		log.Info("a record", "i", i)
	}
	got, gone := r.Bytes()
	lines := bytes.Split(bytes.TrimSpace(got), []byte("\n"))
	if len(got) > 1000 || len(lines)+int(gone) != 100 {
		t.Fatalf("%d bytes, %d lines kept and %d gone of 100", len(got), len(lines), gone)
	}
	if last := string(lines[len(lines)-1]); !strings.Contains(last, `"i":99`) || !strings.Contains(last, `"server":"server-1"`) {
		t.Errorf("the last record is %s", last)
	}
}

func TestLevelsAreIndependent(t *testing.T) {
	var out bytes.Buffer
	r := New(1 << 10)
	log := slog.New(r.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}), slog.LevelInfo))
	log.Debug("for nobody")
	log.Info("for the ring")
	log.Error("for both")
	kept, _ := r.Bytes()
	if strings.Contains(string(kept), "nobody") || !strings.Contains(string(kept), "for the ring") || !strings.Contains(string(kept), "for both") {
		t.Errorf("ring: %s", kept)
	}
	if strings.Contains(out.String(), "for the ring") || !strings.Contains(out.String(), "for both") {
		t.Errorf("log: %s", out.String())
	}
}
