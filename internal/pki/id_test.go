package pki

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trivet/internal/errs"
)

func TestParseIDRoundTrips(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]ID{
		"spiffe://prod/server/s1":             {"prod", RoleServer, "s1"},
		"spiffe://eu.example.com/node/n_1.x":  {"eu.example.com", RoleNode, "n_1.x"},
		"spiffe://c1/agent/ns/Deployment/w/u": {"c1", RoleAgent, "ns/Deployment/w/u"},
		"spiffe://c/client/Alice":             {"c", RoleClient, "Alice"},
	} {
		got, err := ParseID(uri)
		if err != nil {
			t.Errorf("ParseID(%q): %v", uri, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ParseID(%q) (-want +got):\n%s", uri, diff)
		}
		if got.String() != uri || got.URI().String() != uri {
			t.Errorf("%q became String %q, URI %q", uri, got, got.URI())
		}
	}
}

func TestParseIDIsStrict(t *testing.T) {
	t.Parallel()
	for name, uri := range map[string]string{
		"empty":                 "",
		"other scheme":          "https://prod/server/s1",
		"upper-case scheme":     "SPIFFE://prod/server/s1",
		"no cluster":            "spiffe:///server/s1",
		"upper-case cluster":    "spiffe://Prod/server/s1",
		"port":                  "spiffe://prod:443/server/s1",
		"user":                  "spiffe://u@prod/server/s1",
		"query":                 "spiffe://prod/server/s1?a=b",
		"empty query":           "spiffe://prod/server/s1?",
		"fragment":              "spiffe://prod/server/s1#x",
		"percent encoding":      "spiffe://prod/server/s%31",
		"encoded slash":         "spiffe://prod/agent/a%2fb",
		"no role":               "spiffe://prod",
		"no name":               "spiffe://prod/server",
		"empty name":            "spiffe://prod/server/",
		"unknown role":          "spiffe://prod/replica/s1",
		"upper-case role":       "spiffe://prod/Server/s1",
		"segments of non-agent": "spiffe://prod/server/s1/x",
		"empty segment":         "spiffe://prod/agent/a//b",
		"trailing slash":        "spiffe://prod/agent/a/",
		"dot":                   "spiffe://prod/client/.",
		"dot dot":               "spiffe://prod/agent/a/../b",
		"space":                 "spiffe://prod/client/a b",
		"not ASCII":             "spiffe://prod/client/é",
		"NUL":                   "spiffe://prod/client/a\x00",
		"label starts with -":   "spiffe://-prod/client/a",
		"label ends with -":     "spiffe://prod-.x/client/a",
		"empty label":           "spiffe://a..b/client/a",
		"trailing dot":          "spiffe://a./client/a",
		"long cluster":          "spiffe://" + strings.Repeat("a", MaxClusterLen+1) + "/client/a",
		"long name":             "spiffe://prod/client/" + strings.Repeat("a", MaxNameLen+1),
		"very long":             "spiffe://prod/client/" + strings.Repeat("a", 1<<20),
		"many segments":         "spiffe://prod/agent/1/2/3/4/5/6/7/8/9",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, err := ParseID(uri)
			if errs.Reason(err) != ReasonNoIdentity {
				t.Fatalf("ParseID = %v, %v, want %s", id, err, ReasonNoIdentity)
			}
			if len(err.Error()) > 2048 {
				t.Errorf("error is %d bytes long", len(err.Error()))
			}
		})
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{
		"spiffe://prod/server/s1", "spiffe://a.b/agent/ns/k/w/u", "spiffe://prod:1/client/%41?x#y", "spiffe://u@h/node/..",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			if errs.Reason(err) != ReasonNoIdentity {
				t.Fatalf("reason %q of %v", errs.Reason(err), err)
			}
			return
		}
		if id.String() != s || id.URI().String() != s {
			t.Fatalf("%q became String %q, URI %q", s, id, id.URI())
		}
		if err := id.Validate(); err != nil {
			t.Fatalf("parsed %q is invalid: %v", s, err)
		}
		if len(s) > len("spiffe://")+MaxClusterLen+len("/operator/")+MaxNameLen {
			t.Fatalf("accepted %d bytes", len(s))
		}
	})
}
