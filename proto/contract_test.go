// Package proto_test holds the generated code of the telepresence contract
// against a listing of that contract. The listing in testdata was made from the
// published field tables and not from the .proto files; it is therefore never
// rewritten from them, and a difference is a mistake on this side.
package proto_test

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"trivet/proto/telepresence/agentsvc"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

const contractFile = "testdata/telepresence.contract.txt"

// contractFiles are the descriptors under test. Naming them here also links
// their packages into the test.
func contractFiles() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{
		manager.File_telepresence_manager_manager_proto,
		managersvc.File_telepresence_managersvc_manager_service_proto,
		agentsvc.File_telepresence_agentsvc_agent_service_proto,
	}
}

func TestDescriptorsMatchPublishedContract(t *testing.T) {
	t.Parallel()
	for _, d := range differences(readContract(t), listing(contractFiles())) {
		t.Error(d)
	}
}

// TestContractCoversEveryProtoFile fails when a .proto joins the telepresence
// folder without becoming a part of the comparison.
func TestContractCoversEveryProtoFile(t *testing.T) {
	t.Parallel()
	var want []string
	err := filepath.WalkDir("telepresence", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".proto" {
			want = append(want, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range contractFiles() {
		got = append(got, f.Path())
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("compared files %v, files in the tree %v", got, want)
	}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		foreign := strings.HasPrefix(string(f.Package()), "telepresence") &&
			!slices.Contains(got, f.Path())
		if foreign {
			t.Errorf("%s declares package %s but is not compared", f.Path(), f.Package())
		}
		return true
	})
}

// TestComparisonNoticesEveryChange edits the descriptors in the ways a .proto
// can go wrong and expects each edit to be reported.
func TestComparisonNoticesEveryChange(t *testing.T) {
	t.Parallel()
	type file = descriptorpb.FileDescriptorProto
	message := func(f *file, name string) *descriptorpb.DescriptorProto {
		i := slices.IndexFunc(f.MessageType, func(m *descriptorpb.DescriptorProto) bool {
			return m.GetName() == name
		})
		return f.MessageType[i]
	}
	cases := []struct {
		name string
		edit func(messages, service *file)
		want string // part of a reported line
	}{
		{"field renamed", func(m, _ *file) {
			message(m, "LookupRequest").Field[1].Name = proto.String("names")
		}, "LookupRequest.names"},
		{"field renumbered", func(m, _ *file) {
			message(m, "RemainRequest").Field[2].Number = proto.Int32(4)
		}, "last_activity = 4"},
		{"field type changed", func(m, _ *file) {
			signed := descriptorpb.FieldDescriptorProto_TYPE_INT64
			message(m, "TunnelMetrics").Field[1].Type = &signed
		}, "optional int64"},
		{"field made repeated", func(m, _ *file) {
			repeated := descriptorpb.FieldDescriptorProto_LABEL_REPEATED
			message(m, "ClusterInfo").Field[4].Label = &repeated
		}, "manager_pod_ip = 5: repeated bytes"},
		{"field added", func(m, _ *file) {
			message(m, "TunnelMessage").Field = append(message(m, "TunnelMessage").Field,
				&descriptorpb.FieldDescriptorProto{
					Name: proto.String("more"), Number: proto.Int32(2),
					Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
					Type:  descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum(),
				})
		}, "not in the contract: field telepresence.manager.TunnelMessage.more"},
		{"field removed", func(m, _ *file) {
			message(m, "SessionInfo").Field = slices.Delete(message(m, "SessionInfo").Field, 1, 2)
		}, "missing: field telepresence.manager.SessionInfo.manager_install_id"},
		{"packing switched off", func(m, _ *file) {
			unpacked := &descriptorpb.FieldOptions{Packed: proto.Bool(false)}
			message(m, "KnownWorkloadKinds").Field[0].Options = unpacked
		}, "KnownWorkloadKinds.kinds"},
		{"reserved number dropped", func(m, _ *file) {
			message(m, "SessionInfo").ReservedRange = nil
		}, "missing: reserved telepresence.manager.SessionInfo 4"},
		{"name reserved", func(m, _ *file) {
			message(m, "SessionInfo").ReservedName = []string{"agent"}
		}, `not in the contract: reserved telepresence.manager.SessionInfo "agent"`},
		{"enum value renumbered", func(m, _ *file) {
			m.EnumType[0].Value[9].Number = proto.Int32(10)
		}, "REMOVED = 10"},
		{"method no longer streams", func(_, s *file) {
			s.Service[0].Method[32].ClientStreaming = proto.Bool(false)
		}, "Manager.Tunnel"},
		{"method with another response", func(_, s *file) {
			s.Service[0].Method[0].OutputType = proto.String(".telepresence.manager.ClientInfo")
		}, "Manager.Version"},
		{"method removed", func(_, s *file) {
			s.Service[0].Method = s.Service[0].Method[:42]
		}, "missing: method telepresence.manager.Manager.GetCloudConfig"},
		{"message removed", func(m, _ *file) {
			unused := message(m, "PortMapping")
			i := slices.Index(m.MessageType, unused)
			m.MessageType = slices.Delete(m.MessageType, i, i+1)
		}, "missing: message telepresence.manager.PortMapping"},
	}
	contract := readContract(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			original := contractFiles()
			messages := protodesc.ToFileDescriptorProto(original[0])
			service := protodesc.ToFileDescriptorProto(original[1])
			c.edit(messages, service)
			edited := rebuild(t, messages, service)
			got := differences(contract, listing(append(edited, original[2])))
			if !strings.Contains(strings.Join(got, "\n"), c.want) {
				t.Errorf("reported %q, want a line with %q", got, c.want)
			}
		})
	}
}

// rebuild turns edited files back into descriptors, in an own registry.
func rebuild(
	t *testing.T, files ...*descriptorpb.FileDescriptorProto,
) []protoreflect.FileDescriptor {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{File: files}
	for _, path := range []string{
		"google/protobuf/duration.proto",
		"google/protobuf/empty.proto",
		"google/protobuf/timestamp.proto",
	} {
		f, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil {
			t.Fatal(err)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	registry, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	var out []protoreflect.FileDescriptor
	for _, f := range files {
		fd, err := registry.FindFileByPath(f.GetName())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fd)
	}
	return out
}

func readContract(t *testing.T) []string {
	t.Helper()
	f, err := os.Open(contractFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); ; {
		if !s.Scan() {
			if s.Err() != nil {
				t.Fatal(s.Err())
			}
			break
		}
		lines = append(lines, s.Text())
	}
	if !slices.IsSorted(lines) {
		t.Errorf("%s is not sorted", contractFile)
	}
	return lines
}

// differences compares two listings. A line that says something else about the
// same descriptor is reported once, with both forms.
func differences(want, got []string) []string {
	subject := func(line string) string {
		if i := strings.IndexAny(line, "=:"); i >= 0 {
			return strings.TrimSpace(line[:i])
		}
		return line
	}
	gotBySubject := make(map[string]string, len(got))
	for _, line := range got {
		if first, ok := gotBySubject[subject(line)]; ok {
			return []string{fmt.Sprintf("declared twice: %s and %s", first, line)}
		}
		gotBySubject[subject(line)] = line
	}
	var out []string
	for _, line := range want {
		found, ok := gotBySubject[subject(line)]
		switch {
		case !ok:
			out = append(out, "missing: "+line)
		case found != line:
			out = append(out, fmt.Sprintf("changed: %s\n   contract: %s", found, line))
		}
		delete(gotBySubject, subject(line))
	}
	for _, line := range got {
		if _, left := gotBySubject[subject(line)]; left {
			out = append(out, "not in the contract: "+line)
		}
	}
	return out
}

// listing prints every descriptor of the files, one a line, sorted. The entry
// messages behind maps are left out; the map fields stand for them.
func listing(files []protoreflect.FileDescriptor) []string {
	var out []string
	for _, f := range files {
		for d := range all(f.Services()) {
			out = append(out, fmt.Sprintf("service %s", d.FullName()))
			for m := range all(d.Methods()) {
				out = append(out, fmt.Sprintf("method %s: %s -> %s", m.FullName(),
					stream(m.IsStreamingClient(), m.Input()),
					stream(m.IsStreamingServer(), m.Output())))
			}
		}
		out = appendScope(out, f)
	}
	slices.Sort(out)
	return out
}

// scope is what a file and a message have in common.
type scope interface {
	Enums() protoreflect.EnumDescriptors
	Messages() protoreflect.MessageDescriptors
	Extensions() protoreflect.ExtensionDescriptors
}

func appendScope(out []string, s scope) []string {
	for e := range all(s.Enums()) {
		out = append(out, fmt.Sprintf("enum %s", e.FullName()))
		for v := range all(e.Values()) {
			out = append(out, fmt.Sprintf("value %s %s = %d", e.FullName(), v.Name(), v.Number()))
		}
		out = appendReserved(out, e.FullName(), e.ReservedNames(), e.ReservedRanges(), 0)
	}
	for x := range all(s.Extensions()) {
		out = append(out, fmt.Sprintf("extension %s of %s = %d", x.FullName(),
			x.ContainingMessage().FullName(), x.Number()))
	}
	for m := range all(s.Messages()) {
		if m.IsMapEntry() {
			continue
		}
		out = append(out, fmt.Sprintf("message %s", m.FullName()))
		for f := range all(m.Fields()) {
			out = append(out, field(f))
		}
		for o := range all(m.Oneofs()) {
			out = append(out, fmt.Sprintf("oneof %s", o.FullName()))
		}
		out = appendReserved(out, m.FullName(), m.ReservedNames(), m.ReservedRanges(), 1)
		out = appendScope(out, m)
	}
	return out
}

// appendReserved lists what is reserved. Ranges of messages exclude their end
// and ranges of enums include it; beyond is 1 and 0 respectively.
func appendReserved[N ~int32](
	out []string, owner protoreflect.FullName, names protoreflect.Names,
	ranges interface {
		Len() int
		Get(int) [2]N
	},
	beyond N,
) []string {
	for name := range all(names) {
		out = append(out, fmt.Sprintf("reserved %s %q", owner, name))
	}
	for r := range all(ranges) {
		first, last := r[0], r[1]-beyond
		if first == last {
			out = append(out, fmt.Sprintf("reserved %s %d", owner, first))
		} else {
			out = append(out, fmt.Sprintf("reserved %s %d to %d", owner, first, last))
		}
	}
	return out
}

func field(f protoreflect.FieldDescriptor) string {
	var b strings.Builder
	fmt.Fprintf(&b, "field %s = %d: ", f.FullName(), f.Number())
	if f.IsMap() {
		fmt.Fprintf(&b, "map<%s, %s>; presence none",
			fieldType(f.MapKey()), fieldType(f.MapValue()))
		return b.String()
	}
	fmt.Fprintf(&b, "%s %s; presence ", f.Cardinality(), fieldType(f))
	switch {
	case f.IsList():
		b.WriteString("none")
	case f.HasPresence():
		b.WriteString("explicit")
	default:
		b.WriteString("implicit")
	}
	if f.IsPacked() {
		b.WriteString("; packed")
	}
	if o := f.ContainingOneof(); o != nil {
		fmt.Fprintf(&b, "; oneof %s", o.Name())
	}
	return b.String()
}

func fieldType(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return string(f.Enum().FullName())
	default:
		return f.Kind().String()
	}
}

func stream(streams bool, m protoreflect.MessageDescriptor) string {
	if streams {
		return "stream " + string(m.FullName())
	}
	return string(m.FullName())
}

// all ranges over one of the list types of protoreflect.
func all[T any](list interface {
	Len() int
	Get(int) T
},
) func(yield func(T) bool) {
	return func(yield func(T) bool) {
		for i := range list.Len() {
			if !yield(list.Get(i)) {
				return
			}
		}
	}
}
