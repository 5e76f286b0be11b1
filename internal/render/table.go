package render

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Column is one column of a table of T.
type Column[T any] struct {
	// Name is the heading, upper case.
	Name string
	// Value is the cell; "" is shown as "-".
	Value func(T) string
	// Wide columns appear only in the format Wide.
	Wide bool
}

const (
	gap = 2 // spaces between two columns
	// minCell is how far a column may be cut down; less tells nothing.
	minCell = 8
)

// writeTable writes items as aligned columns. When width is known and the
// table is wider, the widest cells are cut in the middle, where identifiers
// differ least. The first column is never cut: it is what a user copies.
func writeTable[T any](w io.Writer, items []T, columns []Column[T], wide bool, width int) error {
	var shown []Column[T]
	for _, c := range columns {
		if wide || !c.Wide {
			shown = append(shown, c)
		}
	}
	rows := make([][]string, 0, len(items)+1)
	head := make([]string, len(shown))
	for i, c := range shown {
		head[i] = c.Name
	}
	rows = append(rows, head)
	for _, item := range items {
		row := make([]string, len(shown))
		for i, c := range shown {
			if row[i] = Clean(c.Value(item)); row[i] == "" {
				row[i] = "-"
			}
		}
		rows = append(rows, row)
	}
	widths := fit(rows, width)
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			cell = shorten(cell, widths[i])
			line += cell
			if i < len(row)-1 {
				line += strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap)
			}
		}
		b.WriteString(strings.TrimRight(line, " "))
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// fit returns the width of each column.
func fit(rows [][]string, width int) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if width <= 0 {
		return widths
	}
	total := gap * (len(widths) - 1)
	for _, n := range widths {
		total += n
	}
	for ; total > width; total-- {
		widest := 0
		for i := 1; i < len(widths); i++ {
			if widths[i] > minCell && (widest == 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest == 0 {
			break
		}
		widths[widest]--
	}
	return widths
}

// shorten cuts the middle out of a cell that is longer than n.
func shorten(cell string, n int) string {
	runes := []rune(cell)
	if len(runes) <= n {
		return cell
	}
	keep := n - 2
	head := (keep + 1) / 2
	return string(runes[:head]) + ".." + string(runes[len(runes)-(keep-head):])
}

// Clean makes text from outside fit one line of a terminal: line ends become
// spaces, other control characters '?'.
func Clean(text string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unprintable(r):
			return '?'
		}
		return r
	}, text)
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Age writes how long ago t was, in its two largest units: "12s", "3m", "2h5m",
// "4d3h". The zero time has no age: "".
func Age(t, now time.Time) string {
	if t.IsZero() || t.Unix() == 0 {
		return ""
	}
	d := max(now.Sub(t), 0)
	hours, days := int(d.Hours()), int(d.Hours())/24
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case days == 0:
		return units(hours, "h", int(d.Minutes())%60, "m")
	}
	return units(days, "d", hours%24, "h")
}

func units(a int, unitA string, b int, unitB string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unitA)
	}
	return fmt.Sprintf("%d%s%d%s", a, unitA, b, unitB)
}

// Bytes writes a number of bytes: "0 B", "1.5 KiB", "256 MiB".
func Bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), -1
	for value >= 1024 && unit < len(binaryUnits)-1 {
		value /= 1024
		unit++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + binaryUnits[unit]
}

var binaryUnits = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
