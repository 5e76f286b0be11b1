package operatorapi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestLimitsAsTheDefaultHasThemAreNotStored(t *testing.T) {
	l := fsm.DefaultLimits()
	l.Nodes = 7
	given := fsm.DefaultLimits()
	given.Nodes = 7
	if d := cmp.Diff(&commandv1.Limits{Nodes: 7}, withoutDefaults(l), protocmp.Transform()); d != "" {
		t.Errorf("stored (-want +got):\n%s", d)
	}
	if d := cmp.Diff(given, l, protocmp.Transform()); d != "" {
		t.Errorf("the request was changed:\n%s", d)
	}
}
