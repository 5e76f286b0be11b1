package settings

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"trivet/internal/errs"
)

func TestParseNetwork(t *testing.T) {
	t.Parallel()
	n, err := ParseNetwork([]byte("serviceSubnets: [10.96.0.0/12]\nclusterDomain: corp.local.\ndnsAddress: 10.96.0.10\nexcludeSuffixes: [.com]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.ServiceSubnets, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}) || n.Domain() != "corp.local." ||
		n.DNSAddress != netip.MustParseAddr("10.96.0.10") || !slices.Equal(n.ExcludeSuffixes, []string{".com"}) {
		t.Errorf("got %+v", n)
	}
	if n, err := ParseNetwork(nil); err != nil || n.Domain() != "cluster.local." {
		t.Errorf("nothing: %+v, %v", n, err)
	}
	for text, want := range map[string]string{
		"podSubnets: [10.1.2.3/24]": "10.1.2.3/24 is no subnet",
		"podSubnet: [10.1.2.0/24]":  "podSubnet",
		"podSubnets: 7":             "podSubnets",
		"neverProxy: [10.0.0.0]":    "10.0.0.0",
	} {
		err := Check(KeyClusterInfo, []byte(text))
		if e := errs.From(err); err == nil || !strings.Contains(e.Message, want) || e.Reason != "BAD_CONFIG" || e.Hint == "" {
			t.Errorf("%s: %v", text, err)
		}
		if err := Check("another", []byte(text)); err != nil {
			t.Errorf("another key: %v", err)
		}
	}
}

func TestExcluded(t *testing.T) {
	t.Parallel()
	if got := Excluded([]byte("A\n  B \r\n\n\nC")); !slices.Equal(got, []string{"A", "B", "C"}) {
		t.Errorf("got %q", got)
	}
}
