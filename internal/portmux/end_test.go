package portmux

import (
	"crypto/tls"
	"io"
	"testing"

	"trivet/internal/pki"
)

// TestEndOfAnIdentity: its connections end, those of others stay, and it may
// come again.
func TestEndOfAnIdentity(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{Identify: func(s tls.ConnectionState) (string, int) {
		id, err := pki.PeerID(s)
		if err != nil {
			t.Error(err)
		}
		return string(id.Role), 0
	}})
	l := m.ALPN(alpnH2)
	var ended []*tls.Conn
	for range 3 {
		tc := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
		echo(t, tc, accept(t, l))
		ended = append(ended, tc)
	}
	other := dialTLS(t, m, c.client(pki.RoleOperator, alpnH2))
	otherServer := accept(t, l)
	if n := m.End("client"); n != 3 {
		t.Errorf("%d connections were ended, want 3", n)
	}
	for _, tc := range ended {
		// Whether it sees an end or a reset is the network's choice.
		if got, _ := io.ReadAll(tc); len(got) > 0 {
			t.Errorf("got %q after the end", got)
		}
	}
	echo(t, other, otherServer)
	if n := m.End("client"); n != 0 {
		t.Errorf("%d connections are still known", n)
	}
	echo(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)), accept(t, l))
	eventually(t, "two connections are open", func() bool { return m.Stats().Open == 2 })
}
