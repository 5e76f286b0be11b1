package cluster_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
