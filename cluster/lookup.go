package cluster

import (
	"context"
	"errors"

	"trivet/cluster/names"
	"trivet/proto/telepresence/manager"
	peerv1 "trivet/proto/trivet/peer/v1"
)

// agentNames asks agents about names on whatever server they wait.
type agentNames struct {
	*names.Broker
	s *Server
}

// Ask implements managerapi.Agents.
func (a agentNames) Ask(ctx context.Context, agent string, q *manager.DNSRequest) (*manager.DNSResponse, error) {
	out, err := a.Broker.Ask(ctx, agent, q)
	if !errors.Is(err, names.ErrNotHere) {
		return out, err
	}
	self := a.s.replica.ID()
	for _, server := range a.s.view.Servers(agent) {
		if server == self {
			continue
		}
		client, dialErr := a.s.dir.ClientOf(server)
		if dialErr != nil {
			err = dialErr
			continue
		}
		resp, askErr := client.AskAgent(ctx, &peerv1.AskAgentRequest{AgentSessionId: agent, Question: q})
		if askErr == nil && resp.GetAnswered() {
			return resp.GetResponse(), nil
		}
		if askErr != nil {
			err = askErr
		}
	}
	return nil, err
}
