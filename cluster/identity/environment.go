package identity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"trivet/internal/seal"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// maxEnvironment bounds the environments in one command, in bytes: a
	// command holds 512 KiB, and there has to be room for the rest of it.
	maxEnvironment = 128 << 10
	// NoteKey is where an intercept's metadata says that its environment was
	// left out.
	NoteKey = "trivet-environment"
)

// environments maps container names to environments; an agent's own, and that
// of an intercept, have the empty name.
type environments map[string]map[string]string

// Seal implements engine.Secrets: it moves the environments in cmd into sealed
// bytes. Messages that cmd points to are not changed but replaced.
func (s *Sealer) Seal(cmd *commandv1.Command) {
	switch op := cmd.GetOp().(type) {
	case *commandv1.Command_ReviewIntercept:
		s.sealReview(cmd, op.ReviewIntercept)
	case *commandv1.Command_ArriveAgent:
		s.sealAgent(cmd, op.ArriveAgent)
	case *commandv1.Command_ReportWorkloads:
		s.sealReport(cmd, op.ReportWorkloads)
	}
}

func (s *Sealer) sealReview(cmd *commandv1.Command, op *commandv1.ReviewIntercept) {
	env := op.GetReview().GetEnvironment()
	if len(env) == 0 {
		return
	}
	op = &commandv1.ReviewIntercept{Review: proto.CloneOf(op.GetReview())}
	op.Review.Environment = nil
	id := op.GetReview().GetId()
	plain := encode(environments{"": env})
	if len(plain) <= maxEnvironment {
		op.SealedEnvironment = s.Ring().Seal(interceptContext(id), plain)
	} else {
		s.drop("intercept", id, len(plain))
		if op.Review.Metadata == nil {
			op.Review.Metadata = make(map[string]string)
		}
		op.Review.Metadata[NoteKey] = fmt.Sprintf("left out: it has %d bytes, at most %d are kept", len(plain), maxEnvironment)
	}
	cmd.Op = &commandv1.Command_ReviewIntercept{ReviewIntercept: op}
}

func (s *Sealer) sealAgent(cmd *commandv1.Command, op *commandv1.ArriveAgent) {
	envs := make(environments)
	if env := op.GetInfo().GetEnvironment(); len(env) > 0 {
		envs[""] = env
	}
	for name, c := range op.GetInfo().GetContainers() {
		if len(c.GetEnvironment()) > 0 {
			// No container has an empty name, but a peer may say so.
			envs["/"+name] = c.GetEnvironment()
		}
	}
	if len(envs) == 0 {
		return
	}
	op = proto.CloneOf(op)
	op.Info.Environment = nil
	for _, c := range op.GetInfo().GetContainers() {
		c.Environment = nil
	}
	plain := encode(envs)
	if len(plain) <= maxEnvironment {
		op.SealedEnvironments = s.Ring().Seal(agentContext(op.GetInfo()), plain)
	} else {
		s.drop("agent", op.GetInfo().GetNamespace()+"/"+op.GetInfo().GetPodName(), len(plain))
	}
	cmd.Op = &commandv1.Command_ArriveAgent{ArriveAgent: op}
}

func (s *Sealer) sealReport(cmd *commandv1.Command, op *commandv1.ReportWorkloads) {
	has := func(c *commandv1.Container) bool { return len(c.GetEnvironment()) > 0 }
	if !slices.ContainsFunc(op.GetWorkloads(), func(w *commandv1.WorkloadReport) bool {
		return slices.ContainsFunc(w.GetPods(), func(p *commandv1.Pod) bool { return slices.ContainsFunc(p.GetContainers(), has) })
	}) {
		return
	}
	op = proto.CloneOf(op)
	left := maxEnvironment
	ring := s.Ring()
	for _, w := range op.GetWorkloads() {
		for _, p := range w.GetPods() {
			for _, c := range p.GetContainers() {
				if !has(c) {
					continue
				}
				plain := encode(environments{"": c.GetEnvironment()})
				c.Environment = nil
				if left -= len(plain) + seal.Overhead; left < 0 {
					s.drop("container", w.GetNamespace()+"/"+p.GetName()+"/"+c.GetName(), len(plain))
					continue
				}
				c.SealedEnvironment = ring.Seal(containerContext(w.GetNamespace(), w.GetName(), p.GetUid(), c.GetName()), plain)
			}
		}
	}
	cmd.Op = &commandv1.Command_ReportWorkloads{ReportWorkloads: op}
}

func (s *Sealer) drop(what, whose string, size int) {
	s.dropped.Add(1)
	s.log.Warn("an environment is too large to be kept and was left out", "of", what, "name", whose, "bytes", size, "limit", maxEnvironment)
}

// Contexts bind sealed bytes to the row that they are in.
func interceptContext(id string) string { return "intercept/" + id }

func agentContext(a *manager.AgentInfo) string {
	return "agent/" + a.GetNamespace() + "/" + a.GetName() + "/" + a.GetPodName()
}

func containerContext(namespace, workload, pod, container string) string {
	return "container/" + namespace + "/" + workload + "/" + pod + "/" + container
}

// InterceptEnvironment opens the environment of an intercept. It is for the
// owner alone.
func (s *Sealer) InterceptEnvironment(row *commandv1.InterceptRow) (map[string]string, error) {
	if len(row.GetSealedEnvironment()) == 0 {
		return row.GetEnvironment(), nil
	}
	envs, err := s.open(interceptContext(row.GetId()), row.GetSealedEnvironment())
	return envs[""], err
}

// AgentInfo returns what an agent said of itself, its environments opened. It
// is for the agent alone.
func (s *Sealer) AgentInfo(row *commandv1.SessionRow) (*manager.AgentInfo, error) {
	if len(row.GetSealedEnvironments()) == 0 {
		return row.GetAgent(), nil
	}
	envs, err := s.open(agentContext(row.GetAgent()), row.GetSealedEnvironments())
	if err != nil {
		return nil, err
	}
	out := proto.CloneOf(row.GetAgent())
	out.Environment = envs[""]
	for name, c := range out.GetContainers() {
		c.Environment = envs["/"+name]
	}
	return out, nil
}

func (s *Sealer) open(context string, sealed []byte) (environments, error) {
	plain, err := s.Ring().Open(context, sealed)
	if err != nil {
		return nil, err
	}
	return decode(plain)
}

// encode writes environments in one order, so that equal ones give equal
// bytes: counts and strings with their lengths.
func encode(envs environments) []byte {
	var out []byte
	text := func(s string) {
		out = binary.AppendUvarint(out, uint64(len(s)))
		out = append(out, s...)
	}
	out = binary.AppendUvarint(out, uint64(len(envs)))
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		text(name)
		env := envs[name]
		out = binary.AppendUvarint(out, uint64(len(env)))
		for _, key := range slices.Sorted(maps.Keys(env)) {
			text(key)
			text(env[key])
		}
	}
	return out
}

var errCut = errors.New("sealed environment ends early")

// decode reads what encode wrote.
func decode(data []byte) (environments, error) {
	number := func() (uint64, error) {
		n, size := binary.Uvarint(data)
		if size <= 0 || n > uint64(len(data)) {
			return 0, errCut
		}
		data = data[size:]
		return n, nil
	}
	text := func() (string, error) {
		n, err := number()
		if err != nil || n > uint64(len(data)) {
			return "", errCut
		}
		s := string(data[:n])
		data = data[n:]
		return s, nil
	}
	out := make(environments)
	containers, err := number()
	for ; err == nil && containers > 0; containers-- {
		var name string
		if name, err = text(); err != nil {
			break
		}
		env := make(map[string]string)
		out[name] = env
		var n uint64
		for n, err = number(); err == nil && n > 0; n-- {
			var key string
			if key, err = text(); err == nil {
				env[key], err = text()
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}
