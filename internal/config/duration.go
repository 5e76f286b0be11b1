package config

import (
	"encoding/json"
	"errors"
	"strings"
	"time"
)

// Duration is a time span that configuration files write as a Go string.
type Duration time.Duration

// errDuration is what a user sees who wrote a bare number: which unit it
// would be in is exactly what nobody should have to guess.
var errDuration = errors.New(`want a duration such as "500ms", "10s" or "2h"`)

// Duration returns the duration as the standard library's type.
func (d Duration) Duration() time.Duration { return time.Duration(d) }

// String is the short form: "2h" where time.Duration says "2h0m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalJSON writes the short form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads a Go duration string.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return errDuration
	}
	return d.UnmarshalText([]byte(text))
}

// UnmarshalText reads a Go duration string; Overlay uses it.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return errDuration
	}
	*d = Duration(v)
	return nil
}
