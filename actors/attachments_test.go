package actors

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// attachmentLog records what the table says and knows the given sessions.
type attachmentLog struct {
	lines []string
	rows  map[string]bool
}

func newAttachmentLog(rows ...string) (*attachments, *attachmentLog) {
	l := &attachmentLog{rows: make(map[string]bool)}
	for _, id := range rows {
		l.rows[id] = true
	}
	note := func(what string) func(string) {
		return func(id string) { l.lines = append(l.lines, what+" "+id) }
	}
	return newAttachments(newClock(time.Hour, elapsedSince(time.Now())), attachmentEvents{
		Attached: note("attached"),
		Ended:    note("ended"),
		Owner:    note("owner"),
		Exists:   func(id string) bool { return l.rows[id] },
	}), l
}

// take returns what was said since the last call.
func (l *attachmentLog) take() []string {
	lines := l.lines
	l.lines = nil
	return lines
}

func TestAttachmentsTellWhatChanged(t *testing.T) {
	dial := Attachment{SessionID: "s", DialStreams: 1}
	watch := Attachment{SessionID: "s", WatchStreams: 1}
	none := Attachment{SessionID: "s"}
	ended := Attachment{SessionID: "s", EndedByPeer: true}
	type say func(*attachments)
	set := func(server string, atts ...Attachment) say {
		return func(t *attachments) { t.set(server, "boot-"+server, false, atts) }
	}
	full := func(server string, atts ...Attachment) say {
		return func(t *attachments) { t.set(server, "boot-"+server, true, atts) }
	}
	rebooted := func(server string, atts ...Attachment) say {
		return func(t *attachments) { t.set(server, "second-boot", true, atts) }
	}
	drop := func(server string) say {
		return func(t *attachments) { t.drop(server) }
	}
	for _, tc := range []struct {
		name   string
		before []say
		last   say
		want   []string
	}{
		{"first dial stream", nil, set("a", dial), []string{"owner s", "attached s"}},
		{"second server adds nothing to the owner", []say{set("a", dial)}, set("b", dial), []string{"attached s"}},
		{"a watch stream is no owner", nil, set("a", watch), []string{"attached s"}},
		{"dial stream gone, watch left", []say{set("a", dial), set("b", watch)}, set("a", ended), []string{"owner s", "attached s"}},
		{"last stream closed by the server", []say{set("a", watch)}, set("a", none), nil},
		{"last stream ended by the peer", []say{set("a", watch)}, set("a", ended), []string{"ended s"}},
		{"ended here, open there", []say{set("a", watch), set("b", watch)}, set("a", ended), []string{"attached s"}},
		{"ended at both", []say{set("a", watch), set("b", watch), set("a", ended)}, set("b", ended), []string{"ended s"}},
		{"ended at one, then the other closes", []say{set("a", watch), set("b", watch), set("a", ended)}, set("b", none), nil},
		{"ended at one, then the other dies", []say{set("a", watch), set("b", watch), set("a", ended)}, drop("b"), nil},
		{"the same end told again", []say{set("a", watch), set("a", ended)}, set("a", ended), nil},
		{"the same end told again in full", []say{set("a", watch), set("a", ended)}, full("a", ended), nil},
		{"an end as news in a full report", []say{full("a", watch)}, full("a", ended), []string{"ended s"}},
		{"an end as history in a first full report", nil, full("a", ended), nil},
		{"history after the server was dropped", []say{full("a", watch), drop("a")}, full("a", ended), nil},
		{"history of a new boot", []say{full("a", watch)}, rebooted("a", ended), nil},
		{"missing in a full report is not ended", []say{full("a", watch)}, full("a"), nil},
		{"missing in a full report frees the owner", []say{full("a", dial)}, full("a"), []string{"owner s"}},
		{"a new boot takes the old one's streams with it", []say{full("a", dial)}, rebooted("a"), []string{"owner s"}},
		{"a server that dies shortens nothing", []say{set("a", dial)}, drop("a"), []string{"owner s"}},
		{"unknown server dropped", nil, drop("z"), nil},
		{"a claim with negative counts", nil, set("a", Attachment{SessionID: "s", DialStreams: -3}), nil},
		{"an end claimed beside open streams", nil, set("a", Attachment{SessionID: "s", WatchStreams: 1, EndedByPeer: true}), []string{"attached s"}},
		{"an end of nobody's session", nil, set("a", Attachment{SessionID: "x", EndedByPeer: true}), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table, log := newAttachmentLog("s")
			for _, say := range tc.before {
				say(table)
			}
			log.take()
			tc.last(table)
			if diff := cmp.Diff(tc.want, log.take()); diff != "" {
				t.Errorf("events differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAttachmentsForgetSessionsWithoutRow(t *testing.T) {
	table, log := newAttachmentLog()
	for i := range 100 {
		id := fmt.Sprintf("s%d", i)
		log.rows[id] = true
		table.set("a", "boot", false, []Attachment{{SessionID: id, WatchStreams: 1}})
		table.set("a", "boot", false, []Attachment{{SessionID: id, EndedByPeer: true}})
		delete(log.rows, id)
		table.forget(id)
	}
	if sessions, _ := table.size(); sessions != 0 {
		t.Errorf("%d sessions remembered, want 0", sessions)
	}
	if held := len(table.servers["a"].held); held != 0 {
		t.Errorf("%d entries held for the server, want 0", held)
	}
}

func TestAttachmentsKeepStreamsOfARemovedSessionUntilTheyClose(t *testing.T) {
	table, log := newAttachmentLog("s")
	table.set("a", "boot", false, []Attachment{{SessionID: "s", DialStreams: 1}})
	delete(log.rows, "s")
	table.forget("s")
	if !table.owner("s").Present {
		t.Error("an open dial stream was forgotten with the row")
	}
	table.set("a", "boot", false, []Attachment{{SessionID: "s"}})
	if sessions, _ := table.size(); sessions != 0 {
		t.Errorf("%d sessions remembered after the last stream, want 0", sessions)
	}
}
