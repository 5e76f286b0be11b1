package cluster_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	commandv1 "trivet/proto/trivet/command/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func manyCommands(n int) []*commandv1.Command {
	out := make([]*commandv1.Command, n)
	for i := range out {
		out[i] = new(commandv1.Command)
	}
	return out
}
