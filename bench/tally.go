package bench

import (
	"fmt"
	"time"
)

// tally keeps the samples by case and store, in the order of rounds.
type tally struct{ samples map[[2]string][]sample }

func newTally() *tally { return &tally{samples: make(map[[2]string][]sample)} }

func (t *tally) add(name, store string, s sample) {
	key := [2]string{name, store}
	t.samples[key] = append(t.samples[key], s)
}

func (t *tally) of(name, store string, value func(sample) float64) []float64 {
	var out []float64
	for _, s := range t.samples[[2]string{name, store}] {
		out = append(out, value(s))
	}
	return out
}

func perSecond(s sample) float64 { return s.perSecond }

// millis turns a duration into the unit of results.
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func raftRows(res *Result, c raftCase, stores []*store, t *tally) {
	against := c.name
	if c.baseline != "" {
		against = c.baseline
	}
	for _, st := range stores {
		rates := t.of(c.name, st.name, perSecond)
		if len(rates) == 0 {
			continue
		}
		name := c.name + ": " + st.name
		res.Add(name, "rate", "/s", rates)
		if _, ok := st.dialect.(trivetDialect); ok {
			for _, base := range []string{etcdTLS, etcdPlain} {
				res.Compare(base, rates, t.of(against, base, perSecond))
			}
		}
		res.Add(name, "p50", "ms", t.of(c.name, st.name, func(s sample) float64 { return millis(s.p50) }))
		res.Add(name, "p99", "ms", t.of(c.name, st.name, func(s sample) float64 { return millis(s.p99) }))
		res.Add(name, "server CPU", "s/10k", t.of(c.name, st.name, func(s sample) float64 { return s.cpu.Seconds() }))
	}
}

func raftTargets(res *Result, stores []*store, t *tally) {
	for _, want := range raftTargetList() {
		against := want.against
		if against == "" {
			against = want.name
		}
		for _, st := range stores {
			if _, ok := st.dialect.(trivetDialect); !ok {
				continue
			}
			for _, base := range []string{etcdTLS, etcdPlain} {
				ratio, ok := ratioOf(t.of(want.name, st.name, perSecond), t.of(against, base, perSecond))
				if !ok {
					continue
				}
				res.Targets = append(res.Targets, Target{
					Name: fmt.Sprintf("%s: %s against %s", want.name, st.name, base),
					Want: fmt.Sprintf(">= %.1f", want.want), Got: ratio, Met: ratio >= want.want,
				})
			}
		}
	}
}
