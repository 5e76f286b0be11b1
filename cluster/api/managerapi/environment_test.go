package managerapi

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestPolicyWithholdsVariables(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DB_PASSWORD": "x", "COLOUR": "blue"}
	for _, c := range []struct {
		globs []string
		want  map[string]string
	}{
		{nil, map[string]string{"DB_PASSWORD": "x", "COLOUR": "blue"}},
		{[]string{"*PASSWORD"}, map[string]string{"COLOUR": "blue"}},
		{[]string{"*"}, map[string]string{}},
	} {
		got := allowedOf(&commandv1.PolicyRow{WithheldEnvironment: c.globs}, env)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%v (-want +got):\n%s", c.globs, d)
		}
	}
	if len(env) != 2 {
		t.Error("the row's own map was changed")
	}
}

// TestEnvironmentThatDoesNotOpen: the owner is told, and gets the rest.
func TestEnvironmentThatDoesNotOpen(t *testing.T) {
	t.Parallel()
	opened := 0
	s := New(Config{Logger: slog.New(slog.DiscardHandler), Environment: func(*commandv1.InterceptRow) (map[string]string, error) {
		opened++
		return nil, errors.New("no such key")
	}})
	row := &commandv1.InterceptRow{Id: "s:one", SealedEnvironment: []byte{1}, Metadata: map[string]string{"a": "b"}}
	got := s.interceptInfo(row, fsm.AudienceOwner)
	if got.GetId() != "s:one" || len(got.GetEnvironment()) > 0 || got.GetMetadata()[environmentNote] == "" || got.GetMetadata()["a"] != "b" {
		t.Errorf("got %v", got)
	}
	if len(row.GetMetadata()) != 1 {
		t.Error("the row's own map was changed")
	}
	for _, audience := range []fsm.Audience{fsm.AudienceReader, fsm.AudienceAgent} {
		if got := s.interceptInfo(row, audience); len(got.GetEnvironment()) > 0 || opened > 1 {
			t.Errorf("audience %d: opened %d times, %v", audience, opened, got)
		}
	}
}
