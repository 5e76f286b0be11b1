package peersim

import (
	"fmt"

	"trivet/proto/telepresence/manager"
)

// reviewer decides as a stock agent does: of the intercepts of one port it
// serves one, the first that it finds; the others of that port get an error.
type reviewer struct {
	// containers are those of the pod; none: any will do.
	containers map[string]bool
	// chosen is the intercept that each port serves, by id.
	chosen map[string]string
}

// port tells the intercepts of one port from those of another.
func port(spec *manager.InterceptSpec) string {
	if n := spec.GetContainerPort(); n != 0 {
		return fmt.Sprintf("%d/%s", n, spec.GetProtocol())
	}
	return spec.GetPortIdentifier()
}

// handle returns the verdicts on what waits, in the order of the list.
func (r *reviewer) handle(list []*manager.InterceptInfo) []*manager.ReviewInterceptRequest {
	const active, waiting = manager.InterceptDispositionType_ACTIVE, manager.InterceptDispositionType_WAITING
	byID := make(map[string]*manager.InterceptInfo, len(list))
	chosen := make(map[string]string)
	for _, i := range list {
		byID[i.GetId()] = i
		if p := port(i.GetSpec()); r.chosen[p] == i.GetId() && (i.GetDisposition() == active || i.GetDisposition() == waiting) {
			chosen[p] = i.GetId()
		}
	}
	for _, want := range []manager.InterceptDispositionType{active, waiting} {
		for _, i := range list {
			if p := port(i.GetSpec()); i.GetDisposition() == want && chosen[p] == "" && r.has(i) {
				chosen[p] = i.GetId()
			}
		}
	}
	r.chosen = chosen
	var out []*manager.ReviewInterceptRequest
	for _, i := range list {
		if i.GetDisposition() != waiting {
			continue
		}
		v := &manager.ReviewInterceptRequest{Id: i.GetId(), Disposition: manager.InterceptDispositionType_AGENT_ERROR}
		switch c := chosen[port(i.GetSpec())]; {
		case !r.has(i):
			v.Message = fmt.Sprintf("No match for container %q", i.GetSpec().GetContainerName())
		case c == i.GetId():
			v.Disposition, v.MechanismArgsDesc = active, "all TCP connections"
		case byID[c].GetDisposition() == active:
			v.Message = fmt.Sprintf("Conflicts with the currently-served intercept %q", c)
		default:
			v.Message = fmt.Sprintf("Conflicts with the currently-waiting-to-be-served intercept %q", c)
		}
		out = append(out, v)
	}
	return out
}

func (r *reviewer) has(i *manager.InterceptInfo) bool {
	name := i.GetSpec().GetContainerName()
	return name == "" || len(r.containers) == 0 || r.containers[name]
}

// served lists the intercepts of the list that the agent serves.
func (r *reviewer) served(list []*manager.InterceptInfo) []*manager.InterceptInfo {
	var out []*manager.InterceptInfo
	for _, i := range list {
		if i.GetDisposition() == manager.InterceptDispositionType_ACTIVE && r.chosen[port(i.GetSpec())] == i.GetId() {
			out = append(out, i)
		}
	}
	return out
}
