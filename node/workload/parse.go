package workload

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"trivet/internal/config"
	"trivet/internal/errs"
)

// defaultKind is the kind of a workload whose entry names none: what most
// programs are to the tools that list them.
const defaultKind = "Deployment"

// uidSpace is the name space of the UIDs that are made up for pods without one.
var uidSpace = uuid.MustParse("5b1f7b0c-6f6e-5a27-9c0e-3d3c0d5a4d11")

var (
	label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	// A pod's name may have dots, as that of a host has.
	dotted   = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
	kindWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,62}$`)
	// A UID becomes part of a session id and of file names.
	uidWord = regexp.MustCompile(`^[A-Za-z0-9][-_.A-Za-z0-9]{0,127}$`)
)

type fileDoc struct {
	Workloads []fileWorkload `json:"workloads"`
}

type fileWorkload struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Kind      string    `json:"kind"`
	Pods      []filePod `json:"pods"`
}

type filePod struct {
	Name        string          `json:"name"`
	UID         string          `json:"uid"`
	IP          string          `json:"ip"`
	Netns       string          `json:"netns"`
	PID         int             `json:"pid"`
	HostNetwork bool            `json:"hostNetwork"`
	Containers  []fileContainer `json:"containers"`
}

type fileContainer struct {
	Name  string            `json:"name"`
	Env   map[string]string `json:"env"`
	PID   int               `json:"pid"`
	Ports []filePort        `json:"ports"`
}

type filePort struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
	Listen   string `json:"listen"`
	App      string `json:"app"`
}

// Parse reads a workload file of the node called node. file stands for its
// path in errors; all problems are reported together.
func Parse(file, node string, data []byte) (*Set, error) {
	doc, err := config.Parse[fileDoc](file, data)
	if err != nil {
		return nil, err
	}
	p := parser{node: node}
	set := p.set(doc)
	if len(p.problems) > 0 {
		return nil, errs.New(codes.InvalidArgument, config.ReasonInvalid, "%s: %s", file, strings.Join(p.problems, "; ")).
			WithHint("correct the entries named above; every pod needs a name, an ip, a place (netns, pid, " +
				"hostNetwork, or listen and app on its ports) and at least one container")
	}
	return set, nil
}

// parser turns the file's form into the checked one and collects problems.
type parser struct {
	node     string
	problems []string
}

func (p *parser) refuse(path, format string, args ...any) {
	p.problems = append(p.problems, path+": "+fmt.Sprintf(format, args...))
}

// match refuses a value that is not of the wanted form and says what is.
func (p *parser) match(path string, form *regexp.Regexp, value, want string) {
	switch {
	case value == "":
		p.refuse(path, "missing")
	case !form.MatchString(value):
		p.refuse(path, "%q is not %s", value, want)
	}
}

func (p *parser) set(doc *fileDoc) *Set {
	var out []*Workload
	names := map[string]string{}
	uids := map[string]string{}
	for i, fw := range doc.Workloads {
		path := fmt.Sprintf("workloads[%d]", i)
		w := p.workload(path, fw)
		p.unique(names, path, w.Namespace+"/"+w.Name, "workload")
		pods := map[string]string{}
		for j, pod := range w.Pods {
			podPath := fmt.Sprintf("%s.pods[%d]", path, j)
			p.unique(pods, podPath+".name", pod.Name, "pod")
			p.unique(uids, podPath+".uid", pod.UID, "uid")
		}
		slices.SortFunc(w.Pods, func(a, b *Pod) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return newSet(out)
}

// unique refuses a value that an earlier entry has.
func (p *parser) unique(seen map[string]string, path, value, what string) {
	if first, ok := seen[value]; ok {
		p.refuse(path, "%s %q is there already, at %s", what, value, first)
		return
	}
	seen[value] = path
}

func (p *parser) workload(path string, fw fileWorkload) *Workload {
	const wantLabel = "a name of lower case letters, digits and dashes"
	w := &Workload{Namespace: fw.Namespace, Name: fw.Name, Kind: cmp.Or(fw.Kind, defaultKind)}
	p.match(path+".namespace", label, fw.Namespace, wantLabel)
	p.match(path+".name", label, fw.Name, wantLabel)
	p.match(path+".kind", kindWord, w.Kind, "a word such as Deployment or StatefulSet")
	if len(fw.Pods) == 0 {
		p.refuse(path+".pods", "at least one pod is needed")
	}
	for i, fp := range fw.Pods {
		w.Pods = append(w.Pods, p.pod(fmt.Sprintf("%s.pods[%d]", path, i), w, fp))
	}
	return w
}

func (p *parser) pod(path string, w *Workload, fp filePod) *Pod {
	pod := &Pod{Namespace: w.Namespace, Workload: w.Name, Kind: w.Kind, Name: fp.Name, UID: fp.UID}
	p.match(path+".name", dotted, fp.Name, "a name of lower case letters, digits, dashes and dots")
	if pod.UID == "" {
		// Stable, so that the agent's session survives a restart of the node.
		pod.UID = uuid.NewSHA1(uidSpace, []byte(p.node+"/"+w.Namespace+"/"+fp.Name)).String()
	}
	p.match(path+".uid", uidWord, pod.UID, "a word of letters, digits, dashes, dots and underscores")
	pod.IP = p.ip(path+".ip", fp.IP)
	pod.Net = p.net(path, fp)
	if len(fp.Containers) == 0 {
		p.refuse(path+".containers", "at least one container is needed")
	}
	names := map[string]string{}
	ports := map[string]string{}
	for i, fc := range fp.Containers {
		at := fmt.Sprintf("%s.containers[%d]", path, i)
		c := p.container(at, fc, pod.Net.Known())
		p.unique(names, at+".name", c.Name, "container")
		for j, port := range c.Ports {
			p.unique(ports, fmt.Sprintf("%s.ports[%d].port", at, j),
				fmt.Sprintf("%d/%s", port.Number, port.Protocol), "port")
		}
		pod.Containers = append(pod.Containers, c)
	}
	return pod
}

func (p *parser) ip(path, text string) netip.Addr {
	if text == "" {
		p.refuse(path, "missing")
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		p.refuse(path, "%q is not an IP address", text)
		return netip.Addr{}
	}
	return ip.Unmap()
}

func (p *parser) net(path string, fp filePod) Net {
	var places []string
	var n Net
	if fp.Netns != "" {
		places = append(places, "netns")
		n.Path = fp.Netns
		if !strings.HasPrefix(fp.Netns, "/") {
			p.refuse(path+".netns", "%q is not an absolute path such as /run/netns/NAME", fp.Netns)
		}
	}
	if fp.PID < 0 {
		p.refuse(path+".pid", "%d is not a process id", fp.PID)
	} else if fp.PID > 0 {
		places = append(places, "pid")
		n.Path = fmt.Sprintf("/proc/%d/ns/net", fp.PID)
	}
	if fp.HostNetwork {
		places = append(places, "hostNetwork")
		n = Net{Host: true}
	}
	if len(places) > 1 {
		p.refuse(path, "%s exclude each other: a pod is in one network namespace", strings.Join(places, " and "))
	}
	return n
}

func (p *parser) container(path string, fc fileContainer, placed bool) Container {
	c := Container{Name: fc.Name, env: fc.Env, pid: fc.PID}
	p.match(path+".name", label, fc.Name, "a name of lower case letters, digits and dashes")
	if fc.PID < 0 {
		p.refuse(path+".pid", "%d is not a process id", fc.PID)
	}
	for name := range fc.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			p.refuse(path+".env", "%q is not a name of a variable", name)
		}
	}
	for i, fp := range fc.Ports {
		c.Ports = append(c.Ports, p.port(fmt.Sprintf("%s.ports[%d]", path, i), fp, placed))
	}
	return c
}

func (p *parser) port(path string, fp filePort, placed bool) Port {
	port := Port{Name: fp.Name, Number: uint16(fp.Port), Protocol: cmp.Or(strings.ToUpper(fp.Protocol), TCP)}
	if fp.Name != "" {
		p.match(path+".name", label, fp.Name, "a name of lower case letters, digits and dashes")
	}
	if fp.Port < 1 || fp.Port > 65535 {
		p.refuse(path+".port", "%d is not between 1 and 65535", fp.Port)
	}
	if port.Protocol != TCP && port.Protocol != UDP {
		p.refuse(path+".protocol", "%q is neither TCP nor UDP", fp.Protocol)
	}
	port.Listen = p.addrPort(path+".listen", fp.Listen)
	port.App = p.addrPort(path+".app", fp.App)
	switch {
	case (fp.Listen == "") != (fp.App == ""):
		p.refuse(path, "listen and app belong together: where visitors connect, and where the app then is")
	case fp.Listen != "" && fp.Listen == fp.App:
		p.refuse(path, "listen and app are the same address: the app would be its own front")
	case fp.Listen != "" && port.Protocol != TCP:
		p.refuse(path, "listen works for TCP only")
	case fp.Listen == "" && !placed && port.Protocol == TCP:
		p.refuse(path, "the pod has no netns, pid or hostNetwork, so the port needs listen and app")
	}
	return port
}

// addrPort reads a literal address with a port; no text is no address.
func (p *parser) addrPort(path, text string) netip.AddrPort {
	if text == "" {
		return netip.AddrPort{}
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		p.refuse(path, "%q is not an address with a port, such as 127.0.0.1:8080", text)
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
