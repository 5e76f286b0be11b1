package fsm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

func canonical(m proto.Message) string {
	e := newEncoder()
	e.message(m.ProtoReflect())
	return hex.EncodeToString(e.buf)
}

// TestCanonicalForm pins the encoding. If one of these changes, digests of old
// and new programs no longer agree: SchemaVersion has to grow.
func TestCanonicalForm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		m    proto.Message
		want string
	}{
		{"empty", &commandv1.ConfigRow{}, "00"},
		{
			"string, bytes, unsigned", &commandv1.ConfigRow{Key: "ab", Value: []byte{9}, CreateRevision: 300},
			"01" + "02" + "6162" + "02" + "01" + "09" + "03" + "ac02" + "00",
		},
		{"signed", &commandv1.MetaRow{Time: -1}, "04" + "01" + "00"},
		{
			"enum and bool",
			&commandv1.SessionRow{Kind: commandv1.SessionKind_SESSION_KIND_AGENT, Compat: true},
			"02" + "04" + "07" + "01" + "00",
		},
		{
			"message", &commandv1.SessionRow{Client: &manager.ClientInfo{Name: "x"}},
			"04" + "01" + "01" + "78" + "00" + "00",
		},
		{"empty message", &commandv1.SessionRow{Client: &manager.ClientInfo{}}, "04" + "00" + "00"},
		{
			"list", &commandv1.TokenRow{KeyDigests: [][]byte{{1}, {}}},
			"08" + "02" + "01" + "01" + "00" + "00",
		},
		{
			"map, by key", &manager.AgentInfo_ContainerInfo{Mounts: map[string]int32{"b": 1, "a": -1}},
			"0d" + "02" + "01" + "61" + "01" + "01" + "62" + "02" + "00",
		},
		{"explicit default", &commandv1.PutConfig{IfModifyRevision: proto.Uint64(0)}, "03" + "00" + "00"},
		{"double", structpb.NewNumberValue(1), "02" + "3ff0000000000000" + "00"},
		{"float", wrapperspb.Float(1), "01" + "3ff0000000000000" + "00"},
		{"false", structpb.NewBoolValue(false), "04" + "00" + "00"},
	} {
		if got := canonical(c.m); got != c.want {
			t.Errorf("%s: %s, not %s", c.name, got, c.want)
		}
	}
}

func TestCanonicalFormKeepsUnknownFields(t *testing.T) {
	t.Parallel()
	row := &commandv1.ConfigRow{}
	row.ProtoReflect().SetUnknown([]byte{0xF8, 0x07, 0x01})
	if got, want := canonical(row), "80808080"+"02"+"03"+"f80701"+"00"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// TestCanonicalMapKeys covers the key types that our messages do not use.
func TestCanonicalMapKeys(t *testing.T) {
	t.Parallel()
	keys := map[descriptorpb.FieldDescriptorProto_Type][]any{
		descriptorpb.FieldDescriptorProto_TYPE_BOOL:   {false, true},
		descriptorpb.FieldDescriptorProto_TYPE_INT32:  {int32(math.MinInt32), int32(-1), int32(5)},
		descriptorpb.FieldDescriptorProto_TYPE_INT64:  {int64(math.MinInt64), int64(-1), int64(5)},
		descriptorpb.FieldDescriptorProto_TYPE_UINT32: {uint32(1), uint32(math.MaxUint32)},
		descriptorpb.FieldDescriptorProto_TYPE_UINT64: {uint64(1), uint64(math.MaxUint64)},
		descriptorpb.FieldDescriptorProto_TYPE_STRING: {"a", "b"},
	}
	for kind, sorted := range keys {
		fd := mapOf(t, kind)
		var forms []string
		for _, order := range [][]any{sorted, reversed(sorted)} {
			m := dynamicpb.NewMessage(fd.ContainingMessage())
			entries := m.Mutable(fd).Map()
			for _, k := range order {
				entries.Set(protoreflect.ValueOf(k).MapKey(), protoreflect.ValueOf(true))
			}
			forms = append(forms, canonical(m))
		}
		if forms[0] != forms[1] {
			t.Errorf("%v: the order of insertion shows", kind)
		}
		at := -1
		for _, k := range sorted {
			e := newEncoder()
			e.scalar(fd.MapKey(), protoreflect.ValueOf(k))
			next := strings.Index(forms[0], hex.EncodeToString(e.buf)+"01")
			if next <= at {
				t.Errorf("%v: key %v is out of order in %s", kind, k, forms[0])
			}
			at = next
		}
		same := protoreflect.ValueOf(sorted[0]).MapKey()
		if compareKeys(same, same) != 0 {
			t.Errorf("%v: a key differs from itself", kind)
		}
	}
}

func reversed(list []any) []any {
	out := slices.Clone(list)
	slices.Reverse(out)
	return out
}

// mapOf makes the descriptor of a map field from keys of a kind to bools.
func mapOf(t *testing.T, kind descriptorpb.FieldDescriptorProto_Type) protoreflect.FieldDescriptor {
	t.Helper()
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &number, Type: &kind, JsonName: &name,
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	entries := field("m", 1, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE)
	entries.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	entries.TypeName = proto.String(".T.MEntry")
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("t.proto"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name:  proto.String("T"),
			Field: []*descriptorpb.FieldDescriptorProto{entries},
			NestedType: []*descriptorpb.DescriptorProto{{
				Name:    proto.String("MEntry"),
				Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
				Field: []*descriptorpb.FieldDescriptorProto{
					field("key", 1, kind), field("value", 2, descriptorpb.FieldDescriptorProto_TYPE_BOOL),
				},
			}},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().Get(0).Fields().Get(0)
}

// TestSchemaVersionFollowsTheSchema fails when a message that a row can hold
// has changed. Old and new programs then digest the same state differently:
// increase SchemaVersion, and run with -rewrite.
func TestSchemaVersionFollowsTheSchema(t *testing.T) {
	t.Parallel()
	seen := map[protoreflect.FullName]string{}
	for _, m := range []proto.Message{
		&commandv1.SessionRow{}, &commandv1.InterceptRow{}, &commandv1.NodeRow{}, &commandv1.WorkloadRow{},
		&commandv1.IdentityRow{}, &commandv1.TokenRow{}, &commandv1.ConfigRow{}, &commandv1.ServerRow{},
		&commandv1.MetaRow{}, &commandv1.Result{}, &commandv1.KeyRow{}, &commandv1.PolicyRow{}, &commandv1.AuditRow{},
	} {
		describe(m.ProtoReflect().Descriptor(), seen)
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, string(name))
	}
	slices.Sort(names)
	hash := sha256.New()
	for _, name := range names {
		fmt.Fprintln(hash, seen[protoreflect.FullName(name)])
	}
	got := fmt.Sprintf("%d %x\n", SchemaVersion, hash.Sum(nil))
	const golden = "testdata/schema.golden"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("schema is %s, was %s", got, want)
	}
}

// describe writes down everything about a message and those in it that the
// canonical form depends on.
func describe(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]string) {
	if _, ok := seen[d.FullName()]; ok {
		return
	}
	seen[d.FullName()] = ""
	var fields []string
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		text := fmt.Sprintf("%06d %v %v presence=%v", fd.Number(), fd.Kind(), fd.Cardinality(), fd.HasPresence())
		if m := fd.Message(); m != nil {
			text += " " + string(m.FullName())
			describe(m, seen)
		}
		fields = append(fields, text)
	}
	slices.Sort(fields)
	seen[d.FullName()] = fmt.Sprint(d.FullName(), " ", strings.Join(fields, "; "))
}
