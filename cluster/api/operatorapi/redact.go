package operatorapi

import (
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Redacted is a row without what only few may see: environments, the hashes of
// token secrets, sealed keys. It never changes the row itself.
func Redacted(row proto.Message) proto.Message {
	switch row := row.(type) {
	case *commandv1.SessionRow:
		c := proto.CloneOf(row)
		c.SealedEnvironments = nil
		redactAgent(c.GetAgent())
		return c
	case *commandv1.InterceptRow:
		c := proto.CloneOf(row)
		c.Environment, c.SealedEnvironment = nil, nil
		return c
	case *commandv1.WorkloadRow:
		c := proto.CloneOf(row)
		for _, p := range c.GetPods() {
			for _, x := range p.GetContainers() {
				x.Environment, x.SealedEnvironment = nil, nil
			}
		}
		return c
	case *commandv1.TokenRow:
		c := proto.CloneOf(row)
		c.SecretHash, c.KeyDigests = nil, nil
		return c
	case *commandv1.KeyRow:
		c := proto.CloneOf(row)
		c.Sealed = nil
		return c
	default:
		return row
	}
}

func redactAgent(a *manager.AgentInfo) {
	for _, c := range a.GetContainers() {
		c.Environment = nil
	}
}

// rowHash is the SHA-256 of a row without its secrets. Servers of one version
// agree on it.
func rowHash(row proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(Redacted(row))
	if err != nil {
		// Rows were unmarshalled from the same schema; they cannot fail to be
		// written in it.
		panic(err)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}
