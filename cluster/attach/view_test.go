package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func dial(session string, n int) Attachment { return Attachment{SessionID: session, DialStreams: n} }

func watch(session string, n int) Attachment { return Attachment{SessionID: session, WatchStreams: n} }

// record is a Listener that writes down what it is told.
type record struct{ lines []string }

func (r *record) SetAttachments(server, boot string, full bool, atts []Attachment) {
	var s []string
	for _, a := range atts {
		s = append(s, fmt.Sprintf("%s:%d/%d/%v", a.SessionID, a.DialStreams, a.WatchStreams, a.EndedByPeer))
	}
	slices.Sort(s)
	r.lines = append(r.lines, fmt.Sprint(server, " ", boot, " ", full, " ", s))
}

func (r *record) DropServer(server string) { r.lines = append(r.lines, "drop "+server) }

func (r *record) expect(t *testing.T, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, r.lines); d != "" {
		t.Errorf("the listener was told (-want +got):\n%s", d)
	}
	r.lines = nil
}

func TestViewKnowsWhoIsWhere(t *testing.T) {
	v := NewView()
	v.Set("s1", "b1", true, []Attachment{dial("a", 1), watch("b", 1)})
	v.Set("s2", "b1", true, []Attachment{dial("a", 1)})
	check := func(session string, dials, all []string) {
		t.Helper()
		if got := v.DialServers(session); !slices.Equal(got, dials) {
			t.Errorf("dial streams of %s are on %v, want %v", session, got, dials)
		}
		if got := v.Servers(session); !slices.Equal(got, all) {
			t.Errorf("streams of %s are on %v, want %v", session, got, all)
		}
	}
	check("a", []string{"s1", "s2"}, []string{"s1", "s2"})
	check("b", nil, []string{"s1"})
	check("c", nil, nil)
	// A delta changes what it names only.
	v.Set("s1", "b1", false, []Attachment{{SessionID: "a", EndedByPeer: true}})
	check("a", []string{"s2"}, []string{"s2"})
	check("b", nil, []string{"s1"})
	// A full one replaces all that this server said.
	v.Set("s1", "b1", true, []Attachment{dial("c", 1)})
	check("b", nil, nil)
	check("c", []string{"s1"}, []string{"s1"})
	// A new incarnation knows nothing of the earlier one's streams, even if it
	// does not say so.
	v.Set("s1", "b2", false, []Attachment{dial("d", 1)})
	check("c", nil, nil)
	check("d", []string{"s1"}, []string{"s1"})
	v.Drop("s1")
	check("d", nil, nil)
	check("a", []string{"s2"}, []string{"s2"})
}

func TestListenerIsToldEverything(t *testing.T) {
	v := NewView()
	v.Set("s1", "b1", true, []Attachment{dial("a", 1), watch("b", 2)})
	l := new(record)
	v.SetListener(l)
	l.expect(t, "s1 b1 true [a:1/0/false b:0/2/false]")
	v.Set("s1", "b1", false, []Attachment{{SessionID: "a", EndedByPeer: true}})
	l.expect(t, "s1 b1 false [a:0/0/true]")
	v.Set("s1", "b2", false, []Attachment{dial("a", 1)})
	l.expect(t, "s1 b2 true [a:1/0/false]")
	v.Drop("s1")
	v.Drop("s1") // it is gone already
	v.Drop("s3") // never heard of
	l.expect(t, "drop s1")
	v.SetListener(nil)
	v.Set("s1", "b2", true, nil)
	l.expect(t)
}

func TestWaitOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewView()
		tried := make(map[Offer]bool)
		wait := func() <-chan Offer {
			out := make(chan Offer, 1)
			go func() {
				if o, err := v.WaitOffer(t.Context(), "a", tried); err == nil {
					out <- o
				}
			}()
			synctest.Wait()
			return out
		}
		none := func(out <-chan Offer, why string) {
			t.Helper()
			synctest.Wait()
			select {
			case o := <-out:
				t.Fatalf("%s: offered %v", why, o)
			default:
			}
		}
		out := wait()
		none(out, "nobody is attached")
		v.Set("s1", "b1", true, []Attachment{watch("a", 1)})
		none(out, "a watch stream cannot dial")
		v.Set("s2", "b1", true, []Attachment{dial("other", 1)})
		none(out, "another session")
		v.Set("s2", "b1", false, []Attachment{dial("a", 1)})
		first := <-out
		if first.Server != "s2" {
			t.Fatalf("offered %v, want s2", first)
		}
		tried[first] = true
		out = wait()
		none(out, "it was tried")
		v.Set("s2", "b1", false, []Attachment{dial("other", 2)})
		none(out, "nothing new of this session")
		// It reconnected to the same server, faster than anybody looked.
		v.Set("s2", "b1", false, []Attachment{dial("a", 1)})
		second := <-out
		if second.Server != "s2" || second == first {
			t.Fatalf("offered %v, want s2 anew", second)
		}
		tried[second] = true
		out = wait()
		v.Set("s1", "b1", false, []Attachment{dial("a", 1)})
		if o := <-out; o.Server != "s1" {
			t.Fatalf("offered %v, want s1", o)
		}
		v.Drop("s1")
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() {
			_, err := v.WaitOffer(ctx, "a", tried)
			end <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-end; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
}
