package manager_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/proto/telepresence/manager"
)

// TestEncoding holds messages against bytes that were put together by hand:
// a tag (number<<3 | wire type), a length where there is one, the value.
func TestEncoding(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		message proto.Message
		hex     string
	}{
		{
			"tunnel handshake of an intercepted connection",
			&manager.TunnelMessage{Payload: unhex(t,
				"01 02 80a8d6b907 80bcc1960b 0d 0a000005 9c40 7f000001 1f90 06 0a 6167656e743a31313131")},
			"0a 25" +
				" 01 02 80a8d6b907 80bcc1960b 0d 0a000005 9c40 7f000001 1f90 06 0a 6167656e743a31313131",
		},
		{
			"tunnel frame without a body",
			&manager.TunnelMessage{Payload: []byte{6}},
			"0a 01 06",
		},
		{
			"session of an agent has no install id",
			&manager.SessionInfo{SessionId: "a:1"},
			"0a 03 613a31",
		},
		{
			"session with an install id that is empty",
			&manager.SessionInfo{SessionId: "a:1", InstallId: proto.String("")},
			"0a 03 613a31 1a 00",
		},
		{
			"session of a client",
			&manager.SessionInfo{SessionId: "c", ManagerInstallId: "m", InstallId: proto.String("i")},
			"0a 01 63 12 01 6d 1a 01 69",
		},
		{
			"repeated integers are packed", // 15<<3|2 = 0x7a; 8080 = 0x90 0x3f
			&manager.InterceptSpec{ExtraPorts: []int32{80, 8080, -1}},
			"7a 0d 50 903f ffffffffffffffffff01",
		},
		{
			"repeated enums are packed",
			&manager.KnownWorkloadKinds{Kinds: []manager.WorkloadInfo_Kind{
				manager.WorkloadInfo_DEPLOYMENT, manager.WorkloadInfo_STATEFULSET,
			}},
			"0a 02 01 03",
		},
		{
			"service subnets are one bytes field each",
			&manager.ClusterInfo{
				ServiceCidrs:  [][]byte{unhex(t, "0a600000 0c"), unhex(t, "0a700000 10")},
				ServiceSubnet: &manager.IPNet{Ip: unhex(t, "0a600000"), Mask: 12},
				ClusterDomain: "x.",
			},
			"0a 05 0a600000 0c 0a 05 0a700000 10 12 08 0a 04 0a600000 10 0c 22 02 782e",
		},
		{
			"map entries are messages of key and value",
			&manager.AgentInfo_ContainerInfo{Mounts: map[string]int32{"/v": 3}},
			"6a 06 0a 02 2f76 10 03",
		},
		{
			"member of a oneof is sent even if it is false",
			&manager.UpdateInterceptRequest{
				PreviewDomainAction: &manager.UpdateInterceptRequest_RemovePreviewDomain{},
			},
			"20 00",
		},
		{
			"field numbers above 15 take two bytes", // 21<<3|2 = 170 = 0xaa 0x01
			&manager.InterceptInfo{
				Disposition: manager.InterceptDispositionType_REMOVED,
				ModifiedAt:  &timestamppb.Timestamp{Seconds: 1, Nanos: 2},
			},
			"18 09 aa01 04 08 01 10 02",
		},
		{
			"legacy and newer field of one request",
			&manager.RemainRequest{
				Session:      &manager.SessionInfo{SessionId: "c"},
				ApiKey:       "k",
				LastActivity: &timestamppb.Timestamp{Seconds: 1},
			},
			"0a 03 0a 01 63 12 01 6b 1a 02 08 01",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := unhex(t, c.hex)
			got, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.message)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(hex.EncodeToString(want), hex.EncodeToString(got)); diff != "" {
				t.Errorf("encoded (-want +got):\n%s", diff)
			}
			decoded := c.message.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(want, decoded); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.message, decoded, protocmp.Transform()); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnpackedIntegersDecode covers senders that do not pack.
func TestUnpackedIntegersDecode(t *testing.T) {
	t.Parallel()
	var got manager.InterceptSpec
	if err := proto.Unmarshal(unhex(t, "78 50 78 903f"), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{80, 8080}, got.GetExtraPorts()); diff != "" {
		t.Errorf("extra ports (-want +got):\n%s", diff)
	}
}

// TestEnsureAgentAnswerSuitsOlderClients: they decode the answer as Empty.
func TestEnsureAgentAnswerSuitsOlderClients(t *testing.T) {
	t.Parallel()
	answer, err := proto.Marshal(&manager.AgentInfoSnapshot{
		Agents: []*manager.AgentInfo{{Name: "web", Namespace: "default"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(answer, &emptypb.Empty{}); err != nil {
		t.Errorf("decode as Empty: %v", err)
	}
}

// TestInstallIDPresence: an absent install id and an empty one stay apart.
func TestInstallIDPresence(t *testing.T) {
	t.Parallel()
	for in, present := range map[string]bool{"": false, "1a00": true} {
		var s manager.SessionInfo
		if err := proto.Unmarshal(unhex(t, in), &s); err != nil {
			t.Fatal(err)
		}
		if got := s.InstallId != nil; got != present {
			t.Errorf("%q: present %v, want %v", in, got, present)
		}
	}
}

// unhex decodes hexadecimal digits; blanks only group them.
func unhex(t *testing.T, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatalf("test data %q: %v", digits, err)
	}
	return b
}
