package config

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Closest returns the candidate that word was most likely meant to be, or ""
// when none is near enough. It is used for config keys, flags and commands.
// Letter case, dashes and underscores do not count as differences. Among
// equals the alphabetically first wins, so that messages are stable.
func Closest(word string, candidates []string) string {
	folded := fold(word)
	if folded == "" {
		return ""
	}
	best, bestDistance := "", allowed(folded)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		f := fold(c)
		d := distance(folded, f)
		// A word that was cut off is a common slip and far away by edits.
		if len(folded) >= 3 && strings.HasPrefix(f, folded) {
			d = 0
		}
		if d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// allowed is how many edits a word of that length may be away: one in three
// letters, at least one, at most three.
func allowed(word string) int {
	return min(max(utf8.RuneCountInString(word)/3, 1), 3)
}

func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s))
}

// distance counts insertions, deletions, replacements and swaps of neighbours
// between a and b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before := make([]int, len(y)+1)
	row := make([]int, len(y)+1)
	next := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(x); i++ {
		next[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(y)]
}
