package chunks

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, size := range []int{0, 1, Size, Size + 1, 3*Size - 7} {
		in := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
		var sent [][]byte
		w := Writer(func(p []byte) error {
			if len(p) == 0 || len(p) > Size {
				t.Fatalf("a message of %d bytes", len(p))
			}
			sent = append(sent, p)
			return nil
		})
		given := bytes.Clone(in)
		if n, err := w.Write(given); n != size || err != nil {
			t.Fatalf("wrote %d of %d: %v", n, size, err)
		}
		clear(given) // a writer keeps nothing of its caller's
		sent = append(sent, nil)
		r := Reader(func() ([]byte, error) {
			if len(sent) == 0 {
				return nil, io.EOF
			}
			p := sent[0]
			sent = sent[1:]
			return p, nil
		})
		if err := iotest.TestReader(r, in); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestErrorsEndAStream(t *testing.T) {
	gone := errors.New("gone")
	calls := 0
	r := Reader(func() ([]byte, error) {
		if calls++; calls == 1 {
			return []byte("ab"), gone
		}
		t.Error("asked again after an error")
		return nil, gone
	})
	got, err := io.ReadAll(r)
	if string(got) != "ab" || !errors.Is(err, gone) {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, gone) {
		t.Errorf("then %v", err)
	}
	room := 1
	w := Writer(func([]byte) error {
		if room--; room < 0 {
			return gone
		}
		return nil
	})
	if n, err := w.Write(make([]byte, Size+1)); n != Size || !errors.Is(err, gone) {
		t.Errorf("wrote %d, %v", n, err)
	}
}

func TestCopyKeepsTheErrorsOfBothSidesApart(t *testing.T) {
	in := bytes.Repeat([]byte("x"), 2*Size+5)
	var sizes []int
	send := func(p []byte) error { sizes = append(sizes, len(p)); return nil }
	if err := Copy(send, iotest.OneByteReader(bytes.NewReader(in))); err != nil || !slices.Equal(sizes, []int{Size, Size, 5}) {
		t.Errorf("sent %v, %v", sizes, err)
	}
	if err := Copy(func([]byte) error { return io.EOF }, bytes.NewReader(in)); err != io.EOF {
		t.Errorf("the stream's end is told as %v", err)
	}
	broken := errors.New("broken")
	if err := Copy(send, io.MultiReader(bytes.NewReader(in), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a file that cannot be read is told as %v", err)
	}
}
