package fsm

import (
	commandv1 "trivet/proto/trivet/command/v1"
)

// Bounds of a configuration entry.
const (
	maxConfigKey   = 512
	maxConfigValue = 512 << 10
)

func checkConfigKey(key string) *commandv1.Result {
	switch {
	case key == "":
		return invalid("config key must not be empty")
	case len(key) > maxConfigKey:
		return invalid("config key must not be longer than %d bytes", maxConfigKey)
	}
	return nil
}

// compare is the compare half of compare-and-set: want is the revision the
// caller saw, 0 for a key that does not exist, nil for no condition.
func (t *tx) compare(key string, want *uint64) *commandv1.Result {
	if want == nil {
		return nil
	}
	row, _ := t.work.configs.get(key)
	have := row.GetModifyRevision()
	if have == *want {
		return nil
	}
	what := "was changed"
	switch {
	case have == 0:
		what = "does not exist"
	case *want == 0:
		what = "exists already"
	}
	return hinted(refuse(commandv1.Code_CODE_ABORTED, ReasonConflict,
		"config key %q %s: modify revision is %d, not %d", key, what, have, *want),
		"read the key again and repeat the change on what it holds now")
}

func (t *tx) putConfig(op *commandv1.PutConfig) *commandv1.Result {
	if res := checkConfigKey(op.GetKey()); res != nil {
		return res
	}
	if n := len(op.GetValue()); n > maxConfigValue {
		return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge,
			"config value of %d bytes is larger than %d", n, maxConfigValue)
	}
	if res := t.compare(op.GetKey(), op.IfModifyRevision); res != nil {
		return res
	}
	old, exists := t.work.configs.get(op.GetKey())
	grows := len(op.GetValue()) - len(old.GetValue())
	if t.since2() && (!exists || grows > 0) {
		l := t.work.limits
		if !exists && uint32(t.work.configs.rows.Len()) >= l.GetConfigKeys() {
			return overLimit(ReasonLimitConfigKeys, "configKeys", "there are %d configuration keys, which is all there may be", l.GetConfigKeys())
		}
		if uint64(t.work.configBytes+grows) > l.GetConfigBytes() {
			return overLimit(ReasonLimitConfigBytes, "configBytes", "configuration values take %d bytes, %d are allowed", t.work.configBytes, l.GetConfigBytes())
		}
	}
	t.work.configBytes += grows
	row := &commandv1.ConfigRow{Key: op.GetKey(), Value: op.GetValue()}
	put(t, &t.work.configs, row)
	return withConfig(row)
}

func (t *tx) deleteConfig(op *commandv1.DeleteConfig) *commandv1.Result {
	if res := checkConfigKey(op.GetKey()); res != nil {
		return res
	}
	if res := t.compare(op.GetKey(), op.IfModifyRevision); res != nil {
		return res
	}
	old, _ := t.work.configs.get(op.GetKey())
	t.work.configBytes -= len(old.GetValue())
	drop(t, &t.work.configs, op.GetKey())
	return done()
}
