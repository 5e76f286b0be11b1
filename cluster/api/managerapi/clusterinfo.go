package managerapi

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"google.golang.org/grpc"

	"trivet/cluster/settings"
	"trivet/fsm"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// WatchClusterInfo follows what clients need to know of the network. Newer
// clients send their session, older ones need none.
func (s *Service) WatchClusterInfo(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.ClusterInfo]) error {
	if info.GetSessionId() != "" {
		if _, err := s.session(stream.Context(), info, 0); err != nil {
			return err
		}
	}
	const only = ""
	it := items[*manager.ClusterInfo]{
		touched: func(_ *fsm.Root, e fsm.Event, key func(string)) {
			if e.Table == fsm.TableWorkloads || e.Table == fsm.TableConfig && e.Key == settings.KeyClusterInfo {
				key(only)
			}
		},
		item: func(root *fsm.Root, _ string) (*manager.ClusterInfo, bool) { return s.clusterInfo(root), true },
		all:  func(root *fsm.Root, yield func(string, *manager.ClusterInfo)) { yield(only, s.clusterInfo(root)) },
	}
	return followItems(s, stream, info.GetSessionId(), gatherWorkloads, it, func(_ delta[*manager.ClusterInfo], all sent[*manager.ClusterInfo]) error {
		return stream.Send(all[only])
	})
}

// network is what a state says of it; what cannot be read is as if it was not
// there.
func (s *Service) network(root *fsm.Root) settings.Network {
	row, _ := root.Config(settings.KeyClusterInfo)
	n, err := settings.ParseNetwork(row.GetValue())
	if err != nil {
		s.cfg.Logger.Warn("the description of the network is not used", "key", settings.KeyClusterInfo, "err", err)
	}
	return n
}

// clusterInfo fills the fields of both generations: field 1 is read by newer
// clients, and the service subnet and the domain beside dns by older ones.
func (s *Service) clusterInfo(root *fsm.Root) *manager.ClusterInfo {
	n := s.network(root)
	if len(n.PodSubnets) == 0 {
		n.PodSubnets = podSubnets(root)
	}
	out := &manager.ClusterInfo{
		PodSubnets:    ipNets(n.PodSubnets),
		ClusterDomain: n.Domain(),
		Routing: &manager.Routing{
			AlsoProxySubnets: ipNets(n.AlsoProxy), NeverProxySubnets: ipNets(n.NeverProxy), AllowConflictingSubnets: ipNets(n.AllowConflicting),
		},
		Dns: &manager.DNS{
			IncludeSuffixes: n.IncludeSuffixes, ExcludeSuffixes: n.ExcludeSuffixes, ClusterDomain: n.Domain(), KubeIp: n.DNSAddress.AsSlice(),
		},
	}
	for _, p := range n.ServiceSubnets {
		if raw, err := p.MarshalBinary(); err == nil {
			out.ServiceCidrs = append(out.ServiceCidrs, raw)
		}
	}
	if len(n.ServiceSubnets) > 0 {
		out.ServiceSubnet = ipNet(n.ServiceSubnets[0])
	}
	if host, port, err := net.SplitHostPort(s.cfg.Address); err == nil {
		if ip, err := netip.ParseAddr(host); err == nil {
			out.ManagerPodIp = ip.Unmap().AsSlice()
		}
		if n, err := strconv.ParseInt(port, 10, 32); err == nil {
			out.ManagerPodPort = int32(n)
		}
	}
	return out
}

func ipNet(p netip.Prefix) *manager.IPNet {
	return &manager.IPNet{Ip: p.Addr().AsSlice(), Mask: int32(p.Bits())}
}

func ipNets(list []netip.Prefix) []*manager.IPNet {
	out := make([]*manager.IPNet, len(list))
	for i, p := range list {
		out[i] = ipNet(p)
	}
	return out
}

// The subnets that are taken for those of pods, of which only addresses are
// known.
const (
	podBits4 = 24
	podBits6 = 64
)

// podSubnets covers the pods of all workloads.
func podSubnets(root *fsm.Root) []netip.Prefix {
	found := make(map[netip.Prefix]struct{})
	add := func(pod *commandv1.Pod) {
		ip, err := netip.ParseAddr(pod.GetIp())
		if err != nil || ip.IsLoopback() {
			return
		}
		ip, bits := ip.Unmap().WithZone(""), podBits6
		if ip.Is4() {
			bits = podBits4
		}
		found[netip.PrefixFrom(ip, bits).Masked()] = struct{}{}
	}
	for w := range root.Workloads {
		for _, pod := range w.GetPods() {
			add(pod)
		}
	}
	return slices.SortedFunc(maps.Keys(found), netip.Prefix.Compare)
}
