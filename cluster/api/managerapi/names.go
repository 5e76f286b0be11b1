package managerapi

import (
	"strings"
	"time"

	"trivet/proto/telepresence/manager"
)

// zeroTime asks Touch for "now".
var zeroTime time.Time

// agentSession starts the id of an agent's session; the pod's uid follows.
const agentSession = "agent:"

// agentName says whether an agent's certificate name,
// <namespace>/<kind>/<workload>/<pod uid>, is that of the agent.
func agentName(name string, info *manager.AgentInfo) bool {
	p := strings.Split(name, "/")
	return len(p) == 4 && p[0] == info.GetNamespace() && p[2] == info.GetName() &&
		strings.EqualFold(p[1], info.GetKind()) && p[3] == info.GetPodUid()
}
