package config_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trivet/internal/config"
)

func TestSchemaListsEveryKeyWithTypeAndDefault(t *testing.T) {
	t.Parallel()
	raw, err := config.Schema[serverFile]("a server")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	properties := got["properties"].(map[string]any)
	want := map[string]any{
		"dataDir": map[string]any{"type": "string"},
		"listen":  map[string]any{"type": "string", "default": ":7400"},
		"peers": map[string]any{"type": "array", "items": map[string]any{
			"type": "object", "additionalProperties": false, "properties": map[string]any{
				"name": map[string]any{"type": "string"}, "address": map[string]any{"type": "string"},
			},
		}},
		"tags":   map[string]any{"type": "array", "items": map[string]any{"type": "string"}},
		"labels": map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}},
		"raft": map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{
			"electionTimeout": map[string]any{"type": "string", "examples": []any{"500ms", "2h"}, "default": "500ms"},
			"multiplier":      map[string]any{"type": "integer", "default": 1.0},
		}},
		"verbose": map[string]any{"type": "boolean"},
	}
	if diff := cmp.Diff(want, properties); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
	if got["additionalProperties"] != false {
		t.Error("unknown keys are allowed")
	}
}

func TestExplainNamesTheSourceOfEachValue(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "server.yaml")
	if err := os.WriteFile(path, []byte("dataDir: /data\nraft: {multiplier: 3}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"TRIVET_SERVER_RAFT_ELECTION_TIMEOUT": "2s", "TRIVET_SERVER_LISTEN": ""}
	got, err := config.Explain[serverFile](path, "TRIVET_SERVER_", func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Value{
		{Key: "dataDir", Value: json.RawMessage(`"/data"`), Source: "file"},
		{Key: "listen", Value: json.RawMessage(`":7400"`), Source: "default"},
		{Key: "raft.electionTimeout", Value: json.RawMessage(`"2s"`), Source: "TRIVET_SERVER_RAFT_ELECTION_TIMEOUT"},
		{Key: "raft.multiplier", Value: json.RawMessage(`3`), Source: "file"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}
