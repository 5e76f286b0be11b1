// Package metricdoc compares the catalogue of metrics, docs/metrics.md, with
// what processes expose. It holds no state.
package metricdoc

import (
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// prefix of all metrics that are ours.
const prefix = "trivet_"

// runtimes start the names of what the traffic process says of its own runtime.
var runtimes = []string{prefix + "node_traffic_go_", prefix + "node_traffic_process_"}

// Sections of the catalogue.
const (
	Servers = "Servers"
	Nodes   = "Nodes"
)

// Metric is what a row says: the type and the names of the labels, sorted.
type Metric struct {
	Type   string
	Labels []string
}

func (m Metric) String() string { return fmt.Sprintf("%s %v", m.Type, m.Labels) }

var (
	row  = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| ([a-z]+) \\|([^|]*)\\| ([^|]+) \\|$")
	tick = regexp.MustCompile("`([a-z_]+)`")
)

// Documented reads a section of the catalogue in that file.
func Documented(file, section string) (map[string]Metric, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the catalogue of metrics: %w", err)
	}
	_, text, ok := strings.Cut(string(raw), "\n## "+section+"\n")
	if !ok {
		return nil, fmt.Errorf("%s has no section %q", file, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	out := make(map[string]Metric)
	for _, r := range row.FindAllStringSubmatch(text, -1) {
		m := Metric{Type: r[2]}
		for _, l := range tick.FindAllStringSubmatch(r[3], -1) {
			m.Labels = append(m.Labels, l[1])
		}
		slices.Sort(m.Labels)
		if _, twice := out[r[1]]; twice {
			return nil, fmt.Errorf("%s lists %s twice", file, r[1])
		}
		out[r[1]] = m
	}
	return out, nil
}

// Exposed reads what processes expose at /metrics, and leaves out what is not
// ours.
func Exposed(bodies ...io.Reader) (map[string]Metric, error) {
	labels, types := make(map[string]map[string]bool), make(map[string]string)
	for _, body := range bodies {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(body)
		if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		for name, f := range families {
			if !strings.HasPrefix(name, prefix) || slices.ContainsFunc(runtimes, func(r string) bool { return strings.HasPrefix(name, r) }) {
				continue
			}
			types[name] = strings.ToLower(dto.MetricType_name[int32(f.GetType())])
			if labels[name] == nil {
				labels[name] = make(map[string]bool)
			}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[name][l.GetName()] = true
				}
			}
		}
	}
	out := make(map[string]Metric, len(types))
	for name, kind := range types {
		out[name] = Metric{Type: kind, Labels: slices.Sorted(maps.Keys(labels[name]))}
	}
	return out, nil
}

// Compare lists the differences, in words.
func Compare(documented, exposed map[string]Metric) []string {
	var out []string
	for name, m := range exposed {
		switch d, ok := documented[name]; {
		case !ok:
			out = append(out, fmt.Sprintf("%s (%v) is exposed and not in the catalogue", name, m))
		case d.Type != m.Type || !slices.Equal(d.Labels, m.Labels):
			out = append(out, fmt.Sprintf("%s is %v in the catalogue, and exposed as %v", name, d, m))
		}
	}
	for name := range documented {
		if _, ok := exposed[name]; !ok {
			out = append(out, fmt.Sprintf("%s is in the catalogue and not exposed", name))
		}
	}
	slices.Sort(out)
	return out
}
