package render

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// Printer writes the output of one command.
type Printer struct {
	// Out receives results, Err everything else.
	Out, Err io.Writer
	Format   Format
	// Width is the number of columns of the terminal behind Out; 0 when Out is
	// no terminal, which lets tables be as wide as their content.
	Width int
}

// list is the shape of every list in JSON and YAML.
type list[T any] struct {
	Items    []T    `json:"items"`
	Revision uint64 `json:"revision"`
}

// List prints items. revision is that of the state they were read from; noun
// names them in the note that an empty table leaves on Err.
func List[T any](p *Printer, items []T, revision uint64, noun string, columns []Column[T]) error {
	switch p.Format {
	case JSON, YAML:
		if items == nil {
			items = []T{}
		}
		return p.document(list[T]{Items: items, Revision: revision})
	case JSONL:
		for _, item := range items {
			if err := p.line(item); err != nil {
				return err
			}
		}
		return nil
	}
	if len(items) == 0 {
		p.Notef("no %s", noun)
		return nil
	}
	return writeTable(p.Out, items, columns, p.Format == Wide, p.Width)
}

// Object prints one value; text writes it for people.
func Object(p *Printer, v any, text func(w io.Writer) error) error {
	switch p.Format {
	case JSON, YAML:
		return p.document(v)
	case JSONL:
		return p.line(v)
	}
	return text(p.Out)
}

// Notef writes one line to Err: progress, warnings, remarks. Structured
// formats get it too, since programs read Out.
func (p *Printer) Notef(format string, args ...any) {
	fmt.Fprintln(p.Err, Clean(fmt.Sprintf(format, args...)))
}

func (p *Printer) document(v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	data = append(data, '\n')
	if p.Format == YAML {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
	}
	return p.write(data)
}

// line writes v as one line of compact JSON.
func (p *Printer) line(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return p.write(append(data, '\n'))
}

func (p *Printer) write(data []byte) error {
	if _, err := p.Out.Write(data); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
