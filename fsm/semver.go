package fsm

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// version is a semantic version without its build part, which has no rank.
type version struct {
	number     [3]uint64
	prerelease []string
}

// minClientVersion is the oldest client that the contract admits.
var minClientVersion = version{number: [3]uint64{2, 6, 0}}

// parseVersion reads a semantic version; a leading "v" is allowed.
func parseVersion(text string) (version, error) {
	bad := func(why string) (version, error) {
		return version{}, fmt.Errorf("version %q is not a semantic version: %s", text, why)
	}
	rest, build, hasBuild := strings.Cut(strings.TrimPrefix(text, "v"), "+")
	rest, pre, hasPre := strings.Cut(rest, "-")
	parts := strings.Split(rest, ".")
	if len(parts) != 3 {
		return bad("it needs MAJOR.MINOR.PATCH")
	}
	var v version
	for i, part := range parts {
		n, err := parseNumber(part)
		if err != nil {
			return bad(err.Error())
		}
		v.number[i] = n
	}
	if hasPre {
		v.prerelease = strings.Split(pre, ".")
		for _, id := range v.prerelease {
			if !isVersionIdentifier(id) {
				return bad(fmt.Sprintf("pre-release part %q is malformed", id))
			}
			if isNumeric(id) && len(id) > 1 && id[0] == '0' {
				return bad(fmt.Sprintf("pre-release number %q starts with a zero", id))
			}
		}
	}
	if hasBuild {
		for id := range strings.SplitSeq(build, ".") {
			if !isVersionIdentifier(id) {
				return bad(fmt.Sprintf("build part %q is malformed", id))
			}
		}
	}
	return v, nil
}

func parseNumber(s string) (uint64, error) {
	switch {
	case !isNumeric(s):
		return 0, fmt.Errorf("%q is not a number", s)
	case len(s) > 1 && s[0] == '0':
		return 0, fmt.Errorf("number %q starts with a zero", s)
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("number %q is too large", s)
	}
	return n, nil
}

func isNumeric(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func isVersionIdentifier(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != ""
}

// less orders by precedence: a pre-release comes before its release.
func (v version) less(o version) bool {
	for i := range v.number {
		if v.number[i] != o.number[i] {
			return v.number[i] < o.number[i]
		}
	}
	if len(v.prerelease) == 0 || len(o.prerelease) == 0 {
		return len(v.prerelease) > len(o.prerelease)
	}
	for i := range min(len(v.prerelease), len(o.prerelease)) {
		if c := comparePrerelease(v.prerelease[i], o.prerelease[i]); c != 0 {
			return c < 0
		}
	}
	return len(v.prerelease) < len(o.prerelease)
}

// comparePrerelease orders numbers by size and before words.
func comparePrerelease(a, b string) int {
	switch na, nb := isNumeric(a), isNumeric(b); {
	case na && nb:
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	case na:
		return -1
	case nb:
		return 1
	}
	return cmp.Compare(a, b)
}

// AtLeast tells whether a version is not older than another. One that is no
// semantic version is older than all.
func AtLeast(text, least string) bool {
	v, err := parseVersion(text)
	if err != nil {
		return false
	}
	want, err := parseVersion(least)
	return err == nil && !v.less(want)
}
