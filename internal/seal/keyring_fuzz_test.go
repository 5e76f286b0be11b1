package seal_test

import (
	"bytes"
	"testing"

	"trivet/internal/seal"
)

// FuzzKeyring reads keyrings. One that is taken comes back as it was.
func FuzzKeyring(f *testing.F) {
	ring, err := seal.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ring.Encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		ring, err := seal.Decode(raw)
		if err != nil {
			return
		}
		again, err := seal.Decode(ring.Encode())
		if err != nil || !bytes.Equal(again.Encode(), ring.Encode()) {
			t.Errorf("it does not come back: %v", err)
		}
	})
}
