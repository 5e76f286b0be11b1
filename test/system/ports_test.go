package system

import (
	"fmt"
	"strings"
	"testing"

	"trivet/test/systest"
)

// TestInterceptOfTwoPorts: further ports come and go with their intercept, and
// survive the leader.
func TestInterceptOfTwoPorts(t *testing.T) {
	systest.Require(t, systest.NGINX)
	c := systest.Start(t)
	local, admin := systest.StartLocal(t), systest.StartLocal(t)
	i := c.Intercept(t, systest.Create{
		Name: "both", Local: local.Port, Attach: 1, Args: []string{"--port", fmt.Sprintf("%d:%s", admin.Port, systest.AdminPortName)},
	})
	both := func(want string) {
		t.Helper()
		for name, v := range map[string]*systest.Visitor{"the main port": c.V4, "the further port": c.Admin} {
			systest.Eventually(t, settle, name+" is answered by "+want, func() error {
				return systest.WantAll([]systest.Visit{v.Visit(t.Context())}, want)
			})
		}
	}
	both(systest.Local)
	if r := c.Trivet(t, systest.ClientContext, "intercept", "list", "-o", "jsonl"); strings.Count(r.Out, "\n") != 1 {
		t.Errorf("the owner sees %s", r.Out)
	}
	// Nobody else gets the further port.
	other := c.Trivet(t, systest.OtherClientContext, "intercept", "create", "mine", "--workload", systest.Workload,
		"--port", fmt.Sprintf("%d:%s", admin.Port, systest.AdminPortName))
	other.WantFailure(t, 5, "conflicts with intercept", "filter")

	leader := c.Leader(t)
	if err := c.Dev.Servers[leader].Kill(); err != nil {
		t.Fatal(err)
	}
	c.Leader(t)
	both(systest.Local)
	c.Restart(t, leader)
	i.Interrupt(t)
	both(systest.App)
	c.WantSameState(t)
}
