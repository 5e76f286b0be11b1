package check_test

import (
	"testing"

	"trivet/test/chaos/check"
)

// change is a put of row key, whose content follows from key and revision.
func change(rev uint64, key string) check.Change {
	return check.Change{Revision: rev, Table: "config", Key: key, Op: "put", Content: key}
}

func deleted(rev uint64, key string) check.Change {
	return check.Change{Revision: rev, Table: "config", Key: key, Op: "delete"}
}

func batch(rev uint64, changes ...check.Change) check.Batch {
	return check.Batch{Revision: rev, Changes: changes}
}

func full(rev uint64, changes ...check.Change) check.Batch {
	return check.Batch{Revision: rev, Full: true, Changes: changes}
}

func diff(rev uint64, changes ...check.Change) check.Batch {
	return check.Batch{Revision: rev, Diff: true, Changes: changes}
}

func stream(server int, after uint64, batches ...check.Batch) check.Stream {
	return check.Stream{Server: server, After: after, Batches: batches}
}

func TestStreams(t *testing.T) {
	// What all clean streams here show parts of.
	whole := stream(0, 0, full(1), batch(3, change(2, "a"), change(3, "b")), batch(4, deleted(4, "a")), batch(6, change(6, "b")))
	for name, x := range map[string]struct {
		streams []check.Stream
		ops     []check.Op
		want    string
	}{
		"clean":                              {streams: []check.Stream{whole, stream(1, 2, batch(3, change(3, "b")), batch(6, deleted(4, "a"), change(6, "b")))}},
		"a late one gets the whole":          {streams: []check.Stream{whole, stream(1, 0, full(5, change(3, "b")), batch(6, change(6, "b")))}},
		"the whole in between":               {streams: []check.Stream{whole, stream(1, 2, full(5, change(3, "b")), batch(6, change(6, "b")))}},
		"a gap":                              {streams: []check.Stream{whole, stream(1, 2, batch(3, change(3, "b")), batch(6, change(6, "b")))}, want: "not delete config/a"},
		"a gap after going on":               {streams: []check.Stream{whole, stream(1, 3, batch(6, change(6, "b")))}, want: "not delete config/a"},
		"a duplicate":                        {streams: []check.Stream{whole, stream(1, 1, batch(2, change(2, "a"), change(2, "a")))}, want: "twice"},
		"a duplicate in the next batch":      {streams: []check.Stream{whole, stream(1, 1, batch(3, change(2, "a"), change(3, "b")), batch(3, change(3, "b")))}, want: "twice"},
		"something the reader had":           {streams: []check.Stream{whole, stream(1, 3, batch(4, change(3, "b"), deleted(4, "a")))}, want: "at revision 3 already"},
		"out of order":                       {streams: []check.Stream{whole, stream(1, 1, batch(3, change(3, "b"), change(2, "a")))}, want: "after a change of revision 3"},
		"backwards":                          {streams: []check.Stream{whole, stream(1, 3, batch(2))}, want: "went back"},
		"ahead of itself":                    {streams: []check.Stream{whole, stream(1, 2, batch(3, change(3, "b"), deleted(4, "a")))}, want: "in a batch up to revision 3"},
		"two contents":                       {streams: []check.Stream{whole, stream(1, 1, batch(2, check.Change{Revision: 2, Table: "config", Key: "a", Op: "put", Content: "x"}))}, want: "shows"},
		"two contents in the whole":          {streams: []check.Stream{whole, stream(1, 0, full(2, check.Change{Revision: 2, Table: "config", Key: "a", Op: "put", Content: "x"}))}, want: "shows"},
		"a whole with a deleted row":         {streams: []check.Stream{whole, stream(1, 0, full(5, change(2, "a"), change(3, "b")))}, want: "it was deleted at 4"},
		"a whole that lacks a row":           {streams: []check.Stream{whole, stream(1, 0, full(3, change(2, "a")))}, want: "without put config/b"},
		"a difference":                       {streams: []check.Stream{whole, stream(1, 2, diff(6, deleted(6, "a"), change(6, "b")))}},
		"a difference of what came and went": {streams: []check.Stream{whole, stream(1, 1, diff(4, change(3, "b")), batch(6, change(6, "b")))}},
		"a difference without a row":         {streams: []check.Stream{whole, stream(1, 2, diff(6, deleted(6, "a")))}, want: "without put config/b"},
		"a difference with an old row":       {streams: []check.Stream{whole, stream(1, 2, diff(6, deleted(6, "a"), change(3, "b")))}, want: "without put config/b"},
		"a difference without a deletion":    {streams: []check.Stream{whole, stream(1, 2, diff(6, change(6, "b")))}, want: "without delete config/a"},
		"a difference that repeats":          {streams: []check.Stream{whole, stream(1, 3, diff(6, change(2, "c"), deleted(6, "a"), change(6, "b")))}, want: "in the difference"},
		"no way to go on":                    {streams: []check.Stream{whole, {Server: 1, After: 3, Refused: "too old"}}, want: "could not go on"},
		"an acknowledged write":              {streams: []check.Stream{whole}, ops: []check.Op{rev(op(check.Put, "k", 0, 1), 9, 0)}},
		"an acknowledged write not shown":    {streams: []check.Stream{whole}, ops: []check.Op{rev(op(check.Put, "k", 0, 1), 5, 0)}, want: "not the acknowledged"},
	} {
		t.Run(name, func(t *testing.T) { want(t, check.Streams(x.streams, "config", x.ops), x.want) })
	}
}

func TestSets(t *testing.T) {
	want(t, check.Sets([]check.SetStream{{Sets: [][]string{{"a"}, {"a", "b"}, {"b"}, {}}}}), "")
	want(t, check.Sets([]check.SetStream{{Sets: [][]string{{"a"}, {}, {"a"}}}}), "a is back in message 2")
}
