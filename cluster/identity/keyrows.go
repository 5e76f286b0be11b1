package identity

import (
	"strings"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Kinds of key rows, which are also the first part of their ids.
const (
	// KindIssuing are issuing CAs; the id goes on with the certificate's serial.
	KindIssuing = "issuing"
	// KindSeal are seal keys that came after the first; the id goes on with
	// that of the key.
	KindSeal = "seal"
)

func issuingID(serial string) string { return KindIssuing + "/" + serial }

func sealID(key string) string { return KindSeal + "/" + key }

// keyOf is the id of the seal key in a row.
func keyOf(row *commandv1.KeyRow) string { return strings.TrimPrefix(row.GetId(), KindSeal+"/") }

// keyRows lists the key rows of a kind.
func keyRows(root *fsm.Root, kind string) []*commandv1.KeyRow {
	var out []*commandv1.KeyRow
	for row := range root.Keys {
		if row.GetKind() == kind {
			out = append(out, row)
		}
	}
	return out
}

// activeKey is the row of a kind that is in use, nil if there is none.
func activeKey(root *fsm.Root, kind string) *commandv1.KeyRow {
	for _, row := range keyRows(root, kind) {
		if row.GetActive() {
			return row
		}
	}
	return nil
}
