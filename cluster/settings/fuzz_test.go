package settings

import "testing"

// FuzzCheck takes values for every key that means something. What is taken can be
// read.
func FuzzCheck(f *testing.F) {
	f.Add(KeyClusterInfo, []byte("serviceSubnets: [10.96.0.0/12]\n"))
	f.Add(KeyLogLevel, []byte("level: debug\nuntil: 2026-01-01T00:00:00Z\n"))
	f.Add(KeyExcludedEnvironment, []byte("A\nB\n"))
	f.Add(NodeLogLevel("n"), []byte("level: loud"))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		if Check(key, value) != nil {
			return
		}
		switch {
		case key == KeyClusterInfo:
			if n, err := ParseNetwork(value); err != nil || n.Domain() == "" {
				t.Errorf("%+v, %v", n, err)
			}
		case IsLogLevel(key):
			l, err := ParseLogLevel(value)
			if err != nil || l.Level == "" {
				t.Fatalf("%+v, %v", l, err)
			}
			raw, err := l.Encode()
			if err != nil {
				return // a time that YAML cannot say
			}
			if again, err := ParseLogLevel(raw); err != nil || again.Level != l.Level || !again.Until.Equal(l.Until) {
				t.Errorf("%+v comes back as %+v, %v", l, again, err)
			}
		case key == KeyExcludedEnvironment:
			for _, name := range Excluded(value) {
				if name == "" {
					t.Error("an empty name")
				}
			}
		}
	})
}
