package fsm

import (
	"strings"

	"trivet/proto/telepresence/manager"
)

// filter is one value or path filter of an intercept.
type filter struct {
	kind filterKind
	// text is the value, the prefix, or the literal that every match of the
	// regular expression starts with.
	text string
}

type filterKind uint8

const (
	filterEqual filterKind = iota
	filterPrefix
	filterRegex
)

func parseFilter(s string) filter {
	if text, ok := strings.CutPrefix(s, ":path-equal:"); ok {
		return filter{filterEqual, text}
	}
	if text, ok := strings.CutPrefix(s, ":path-prefix:"); ok {
		return filter{filterPrefix, text}
	}
	if text, ok := strings.CutPrefix(s, ":path-regex:"); ok {
		return filter{filterRegex, literalPrefix(text)}
	}
	return filter{filterEqual, s}
}

// overlaps tells whether one text may match both filters. For regular
// expressions, which are never compiled here, it says yes unless their literal
// prefixes exclude each other.
func (f filter) overlaps(o filter) bool {
	switch fe, oe := f.kind == filterEqual, o.kind == filterEqual; {
	case fe && oe:
		return f.text == o.text
	case fe:
		return strings.HasPrefix(f.text, o.text)
	case oe:
		return strings.HasPrefix(o.text, f.text)
	}
	return strings.HasPrefix(f.text, o.text) || strings.HasPrefix(o.text, f.text)
}

// literalPrefix returns a text that every match of the expression starts with.
// It knows only what is certain: an expression that is not anchored, or has an
// alternative, may start anywhere and gives the empty text.
func literalPrefix(regex string) string {
	rest, anchored := strings.CutPrefix(regex, "^")
	if !anchored || strings.Contains(rest, "|") {
		return ""
	}
	var out []byte
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '\\':
			if i+1 == len(rest) || isWord(rest[i+1]) {
				return string(out) // a class or an assertion
			}
			i++
			out = append(out, rest[i])
		case strings.IndexByte("*+?{", c) >= 0:
			// The character before it may be absent, and may be the last
			// byte of a longer one.
			return trimRune(out)
		case strings.IndexByte(".()[]}^$", c) >= 0:
			return string(out)
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= 0x80
}

// trimRune removes the last character.
func trimRune(b []byte) string {
	for len(b) > 0 {
		last := b[len(b)-1]
		b = b[:len(b)-1]
		if last < 0x80 || last >= 0xC0 {
			break
		}
	}
	return string(b)
}

// headersOverlap tells whether one of two header filters asks for all that the
// other asks for, with values that a single request can have. Names compare
// without case.
func headersOverlap(a, b map[string]string) bool {
	al, bl := lowered(a), lowered(b)
	return covers(al, bl) || covers(bl, al)
}

func lowered(headers map[string]string) map[string][]filter {
	out := make(map[string][]filter, len(headers))
	for name, value := range headers {
		name = strings.ToLower(name)
		out[name] = append(out[name], parseFilter(value))
	}
	return out
}

// covers tells whether every header of small is in large with a value that
// overlaps.
func covers(large, small map[string][]filter) bool {
	for name, filters := range small {
		others, ok := large[name]
		if !ok || !anyOverlap(filters, others) {
			return false
		}
	}
	return true
}

func anyOverlap(a, b []filter) bool {
	for _, f := range a {
		for _, o := range b {
			if f.overlaps(o) {
				return true
			}
		}
	}
	return false
}

func pathFilters(spec *manager.InterceptSpec) []filter {
	out := make([]filter, len(spec.GetPathFilters()))
	for i, p := range spec.GetPathFilters() {
		out[i] = parseFilter(p)
	}
	return out
}
