package managerapi

import (
	"maps"

	"trivet/cluster/settings"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// environmentNote is where an intercept's metadata says why its environment is
// not there.
const environmentNote = "trivet-environment"

// interceptInfo is fsm.InterceptInfo with the environment opened for the owner,
// who alone gets it, but for what the intercept's policy withholds.
func (s *Service) interceptInfo(row *commandv1.InterceptRow, audience fsm.Audience) *manager.InterceptInfo {
	info := fsm.InterceptInfo(row, audience)
	if audience != fsm.AudienceOwner {
		return info
	}
	if len(row.GetSealedEnvironment()) > 0 {
		env, err := s.cfg.Environment(row)
		if err != nil {
			s.cfg.Logger.Error("an environment could not be opened", "intercept", row.GetId(), "err", err, "hint", errs.From(err).Hint)
			note(info, "could not be opened by the server: "+errs.From(err).Message)
			return info
		}
		info.Environment = env
	}
	info.Environment = s.withoutExcluded(info.GetEnvironment())
	if name := row.GetPolicy(); name != "" {
		p, ok := s.cfg.Core.Root().Policy(name)
		if !ok {
			info.Environment = nil
			note(info, "withheld: the policy that allowed the intercept is gone, and with it what it withheld")
			return info
		}
		info.Environment = allowedOf(p, info.GetEnvironment())
	}
	return info
}

// withoutExcluded is an environment without the variables that must not leave a
// pod.
func (s *Service) withoutExcluded(env map[string]string) map[string]string {
	row, _ := s.cfg.Core.Root().Config(settings.KeyExcludedEnvironment)
	excluded := settings.Excluded(row.GetValue())
	if len(excluded) == 0 || len(env) == 0 {
		return env
	}
	env = maps.Clone(env) // the row's own
	for _, key := range excluded {
		delete(env, key)
	}
	return env
}

// allowedOf is an environment without what a policy withholds.
func allowedOf(p *commandv1.PolicyRow, env map[string]string) map[string]string {
	withheld := func(key, _ string) bool { return fsm.Withheld(p, key) }
	env = maps.Clone(env) // the row's own
	maps.DeleteFunc(env, withheld)
	return env
}

// note adds a remark about the environment to an intercept's metadata.
func note(info *manager.InterceptInfo, text string) {
	meta := maps.Clone(info.GetMetadata())
	if meta == nil {
		meta = make(map[string]string)
	}
	meta[environmentNote] = text
	info.Metadata = meta
}
