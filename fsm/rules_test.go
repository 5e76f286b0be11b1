package fsm

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestVersionOrder(t *testing.T) {
	t.Parallel()
	ascending := []string{
		"0.0.1", "0.9.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta",
		"1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.1.0", "v2.6.0", "10.0.0",
	}
	for i, a := range ascending {
		for j, b := range ascending {
			va, err := parseVersion(a)
			if err != nil {
				t.Fatal(err)
			}
			vb, err := parseVersion(b)
			if err != nil {
				t.Fatal(err)
			}
			if va.less(vb) != (i < j) {
				t.Errorf("%s < %s is %v", a, b, va.less(vb))
			}
		}
	}
}

func TestMalformedVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                            "MAJOR.MINOR.PATCH",
		"1":                           "MAJOR.MINOR.PATCH",
		"1.2":                         "MAJOR.MINOR.PATCH",
		"1.2.3.4":                     "MAJOR.MINOR.PATCH",
		"1.2.x":                       "not a number",
		"1..3":                        "not a number",
		"01.2.3":                      "starts with a zero",
		"1.2.99999999999999999999999": "too large",
		"1.2.3-":                      "pre-release part",
		"1.2.3-a..b":                  "pre-release part",
		"1.2.3-01":                    "starts with a zero",
		"1.2.3-ä":                     "pre-release part",
		"1.2.3+":                      "build part",
		"1.2.3+a_b":                   "build part",
		"vv1.2.3":                     "not a number",
	} {
		if _, err := parseVersion(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestFilterOverlap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"x", "x", true},
		{"x", "y", false},
		{":path-equal:x", "x", true},
		{":path-prefix:/api", "/api/v1", true},
		{":path-prefix:/api", "/web", false},
		{":path-prefix:/api", ":path-prefix:/api/v1", true},
		{":path-prefix:/api", ":path-prefix:/web", false},
		{":path-prefix:", ":path-prefix:/web", true},
		{":path-regex:^/api/.*", "/api/v1", true},
		{":path-regex:^/api/.*", "/web", false},
		{":path-regex:^/api/.*", ":path-prefix:/web", false},
		{":path-regex:^/api/.*", ":path-prefix:/a", true},
		{":path-regex:^/api/.*", ":path-regex:^/web/.*", false},
		{":path-regex:^/api/.*", ":path-regex:^/api/v[12]", true},
		{":path-regex:^/api/.*", ":path-regex:/web/.*", true}, // not anchored
		{":path-regex:^/a|/b", "/c", true},                    // alternative
	} {
		if got := parseFilter(c.a).overlaps(parseFilter(c.b)); got != c.want {
			t.Errorf("%q and %q: %v", c.a, c.b, got)
		}
		if got := parseFilter(c.b).overlaps(parseFilter(c.a)); got != c.want {
			t.Errorf("%q and %q: %v", c.b, c.a, got)
		}
	}
}

func TestLiteralPrefix(t *testing.T) {
	t.Parallel()
	for regex, want := range map[string]string{
		"":              "",
		"/api":          "",
		"^":             "",
		"^/api":         "/api",
		"^/api$":        "/api",
		"^/api/.*":      "/api/",
		"^/ab*":         "/a",
		"^/ab?c":        "/a",
		"^/ab{0,2}":     "/a",
		"^/ab+":         "/a",
		"^/aß?":         "/a",
		"^/v1\\.2":      "/v1.2",
		"^/v1\\.?2":     "/v1",
		"^/a\\d":        "/a",
		"^/a\\":         "/a",
		"^/a\\/b":       "/a/b",
		"^(?i)/api":     "",
		"^/a(b)":        "/a",
		"^/a[bc]":       "/a",
		"^/a|/b":        "",
		"^/api(/x|/y)?": "",
		"^^/api":        "",
		"^?/a":          "",
	} {
		if got := literalPrefix(regex); got != want {
			t.Errorf("%q: %q, not %q", regex, got, want)
		}
	}
}

// TestLiteralPrefixIsTrue checks the claim against a real matcher: whatever
// matches starts with the prefix.
func TestLiteralPrefixIsTrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		expr := rapid.StringMatching(`\^?[/ab.*+?|()\[\]{}0-2,\\$^ß]{0,10}`).Draw(t, "regex")
		re, err := regexp.Compile(expr)
		if err != nil {
			t.Skip("not a regular expression")
		}
		text := rapid.StringMatching(`[/abß0-2.]{0,8}`).Draw(t, "text")
		if re.MatchString(text) && !strings.HasPrefix(text, literalPrefix(expr)) {
			t.Fatalf("%q matches %q, which does not start with %q", expr, text, literalPrefix(expr))
		}
	})
}

// TestConflictTable walks the rules of two intercepts of one port.
func TestConflictTable(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(*manager.InterceptSpec){
		"global":  func(*manager.InterceptSpec) {},
		"headerA": func(s *manager.InterceptSpec) { s.HeaderFilters = map[string]string{"X": "a"} },
		"headerB": func(s *manager.InterceptSpec) { s.HeaderFilters = map[string]string{"x": "b"} },
		"headers": func(s *manager.InterceptSpec) { s.HeaderFilters = map[string]string{"x": "a", "Y": "1"} },
		"headerA+path": func(s *manager.InterceptSpec) {
			s.HeaderFilters = map[string]string{"X": "a"}
			s.PathFilters = []string{"/api"}
		},
		"headerA+path2": func(s *manager.InterceptSpec) {
			s.HeaderFilters = map[string]string{"X": "a"}
			s.PathFilters = []string{"/web"}
		},
		"path":    func(s *manager.InterceptSpec) { s.PathFilters = []string{":path-prefix:/a"} },
		"path2":   func(s *manager.InterceptSpec) { s.PathFilters = []string{"/web"} },
		"replace": func(s *manager.InterceptSpec) { s.Replace, s.HeaderFilters = true, map[string]string{"Z": "z"} },
		"wiretap": func(s *manager.InterceptSpec) { s.Wiretap = true },
		"other port": func(s *manager.InterceptSpec) {
			s.ContainerPort = 81
		},
		"other protocol": func(s *manager.InterceptSpec) { s.Protocol = "udp" },
		"any port":       func(s *manager.InterceptSpec) { s.ContainerPort = 0 },
		"number":         func(s *manager.InterceptSpec) { s.ContainerPort, s.PortIdentifier = 0, "80" },
		"name":           func(s *manager.InterceptSpec) { s.ContainerPort, s.PortIdentifier = 0, "http" },
		"malformed":      func(s *manager.InterceptSpec) { s.ContainerPort, s.PortIdentifier = 0, "http/x" },
		"pod port": func(s *manager.InterceptSpec) {
			s.ContainerPort, s.NoDefaultPort, s.PodPorts = 0, true, []string{"bad/", "80"}
		},
		"no port": func(s *manager.InterceptSpec) { s.ContainerPort, s.NoDefaultPort = 0, true },
		"no port, replace": func(s *manager.InterceptSpec) {
			s.ContainerPort, s.NoDefaultPort, s.Replace = 0, true, true
		},
	}
	conflict := map[string]bool{}
	for _, pair := range []string{
		"global global", "global headerA", "global headerB", "global headers", "global headerA+path",
		"global headerA+path2", "global path", "global path2", "global replace", "global any port",
		"global number", "global pod port",
		"headerA headerA", "headerB headerB", "headers headers", "headerA headers",
		"headerA headerA+path", "headerA headerA+path2", "headers headerA+path", "headers headerA+path2",
		"headerA+path headerA+path", "headerA+path2 headerA+path2",
		"path path", "path2 path2",
		"any port any port", "number number", "name name", "malformed malformed", "pod port pod port",
		"any port number", "any port name", "any port malformed", "any port pod port",
		"any port other port", "number pod port", "other port other port",
		"other protocol other protocol",
	} {
		conflict[pair] = true
	}
	filtered := []string{"headerA", "headerB", "headers", "headerA+path", "headerA+path2", "path", "path2"}
	for _, a := range filtered {
		for _, b := range []string{"any port", "number", "pod port"} {
			conflict[a+" "+b] = true
		}
	}
	for name := range kinds {
		// Replacing a container tolerates nobody else in it.
		conflict["replace "+name] = name != "wiretap"
		conflict["no port, replace "+name] = name != "wiretap"
	}
	for a, setA := range kinds {
		for b, setB := range kinds {
			r := newRig(t, Options{})
			r.ok(cmdArriveClient("alice"))
			r.ok(cmdArriveClient("bob"))
			r.ok(cmdArriveAgent(agentInfo("web", "w1")))
			first, second := interceptSpec("alice", "one", "web", 80), interceptSpec("bob", "one", "web", 80)
			setA(first)
			setB(second)
			if res := r.do(cmdCreate("alice", first)); res.GetCode() != 0 {
				if a == "pod port" || a == "malformed" {
					continue // cannot be made
				}
				t.Fatalf("%s: %v", a, compact(res))
			}
			want := conflict[a+" "+b] || conflict[b+" "+a]
			c := r.m.Root().CheckConflict(second, "bob")
			if (c != nil) != want {
				t.Errorf("%s, then %s: %v", a, b, c)
			}
			if c != nil && (!strings.Contains(c.Message(), `"alice:one"`) || c.Port == "" || c.Why == "") {
				t.Errorf("%s, then %s: %s", a, b, c.Message())
			}
		}
	}
}

func TestContainersKeepReplacesApart(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdArriveClient("alice"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	first, second := interceptSpec("alice", "one", "web", 80), interceptSpec("alice", "two", "web", 81)
	first.Replace, first.ContainerName = true, "app"
	second.ContainerName = "proxy"
	r.ok(cmdCreate("alice", first))
	r.ok(cmdCreate("alice", second))
}

func TestForceDisplacesAllOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	for _, name := range []string{"alice", "bob", "carol"} {
		r.ok(cmdArriveClient(name))
	}
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	for name, value := range map[string]string{"alice": "a", "bob": "b"} {
		s := interceptSpec(name, "one", "web", 80)
		s.HeaderFilters = map[string]string{"X": value}
		r.ok(cmdCreate(name, s))
	}
	away := func(id string) {
		row, _ := r.m.Root().Intercept(id)
		r.ok(&commandv1.Command{Op: &commandv1.Command_SetIntercept{SetIntercept: &commandv1.SetIntercept{
			Id: id, SeenModifyRevision: row.GetModifyRevision(),
			OwnerState: commandv1.OwnerState_OWNER_STATE_AWAY,
		}}})
	}
	force := cmdCreate("carol", interceptSpec("carol", "all", "web", 80))
	force.GetCreateIntercept().Force = true
	away("alice:one")
	if res := r.do(proto.Clone(force).(*commandv1.Command)); res.GetReason() != ReasonInterceptConflict ||
		!strings.Contains(res.GetMessage(), `"bob:one"`) {
		t.Errorf("result is %v", compact(res))
	}
	if row, _ := r.m.Root().Intercept("alice:one"); !claims(row.GetDisposition()) {
		t.Errorf("a refused command displaced %v", compact(row))
	}
	away("bob:one")
	if res := r.ok(force); !strings.Contains(res.GetMessage(), `"alice:one"`) ||
		!strings.Contains(res.GetMessage(), `"bob:one"`) {
		t.Errorf("message is %q", res.GetMessage())
	}
}

func TestFiltersAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdArriveClient("alice"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	long := strings.Repeat("x", maxFilterBytes+1)
	for name, set := range map[string]func(*manager.InterceptSpec){
		"paths":  func(s *manager.InterceptSpec) { s.PathFilters = make([]string, maxFilters+1) },
		"path":   func(s *manager.InterceptSpec) { s.PathFilters = []string{long} },
		"header": func(s *manager.InterceptSpec) { s.HeaderFilters = map[string]string{"a": long} },
	} {
		s := interceptSpec("alice", "one", "web", 80)
		set(s)
		if res := r.do(cmdCreate("alice", s)); res.GetReason() != ReasonInvalid {
			t.Errorf("%s: %v", name, compact(res))
		}
	}
}

func TestLeaseDoesNotOverflow(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.ok(cmdArriveClient("alice"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	c := cmdCreate("alice", interceptSpec("alice", "one", "web", 80))
	c.GetCreateIntercept().Lease = math.MaxInt64
	if got := r.ok(c).GetIntercept().GetLeaseUntil(); got != math.MaxInt64 {
		t.Errorf("lease until %d", got)
	}
	c = cmdCreate("alice", interceptSpec("alice", "two", "web", 81))
	c.GetCreateIntercept().Lease = int64(time.Hour)
	if got := r.ok(c).GetIntercept().GetLeaseUntil(); got != r.now+int64(time.Hour) {
		t.Errorf("lease until %d", got)
	}
}

func TestRoleOf(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string][2]string{
		"spiffe://c/operator/olga":   {"operator", "olga"},
		"spiffe://c/node/rack1/n1":   {"node", "rack1/n1"},
		"https://c/operator/olga":    {},
		"spiffe://c/operator":        {},
		"spiffe://c/operator/":       {},
		"spiffe://c":                 {},
		"spiffe:///operator/olga":    {},
		"":                           {},
		"spiffe://operator/x":        {},
		"spiffe://c//operator/olga":  {},
		" spiffe://c/operator/olga":  {},
		"SPIFFE://c/operator/olga":   {},
		"spiffe://c/Operator/olga":   {"Operator", "olga"},
		"spiffe://c/viewer/operator": {"viewer", "operator"},
	} {
		role, name := roleOf(uri)
		if role != want[0] || name != want[1] {
			t.Errorf("%q: %q, %q", uri, role, name)
		}
	}
}

func TestAgentViewOfEveryState(t *testing.T) {
	t.Parallel()
	present := commandv1.OwnerState_OWNER_STATE_PRESENT
	for _, c := range []struct {
		d       manager.InterceptDispositionType
		owner   commandv1.OwnerState
		want    manager.InterceptDispositionType
		visible bool
	}{
		{manager.InterceptDispositionType_WAITING, present, manager.InterceptDispositionType_WAITING, true},
		{manager.InterceptDispositionType_ACTIVE, present, manager.InterceptDispositionType_ACTIVE, true},
		{manager.InterceptDispositionType_AGENT_ERROR, present, manager.InterceptDispositionType_AGENT_ERROR, true},
		{manager.InterceptDispositionType_REMOVED, present, manager.InterceptDispositionType_REMOVED, true},
		{manager.InterceptDispositionType_NO_AGENT, present, manager.InterceptDispositionType_NO_AGENT, false},
		{manager.InterceptDispositionType_NO_CLIENT, present, manager.InterceptDispositionType_NO_CLIENT, false},
		{
			manager.InterceptDispositionType_ACTIVE, commandv1.OwnerState_OWNER_STATE_AWAY,
			manager.InterceptDispositionType_NO_CLIENT, false,
		},
		{
			manager.InterceptDispositionType_REMOVED, commandv1.OwnerState_OWNER_STATE_AWAY,
			manager.InterceptDispositionType_REMOVED, true,
		},
		{
			manager.InterceptDispositionType_ACTIVE, commandv1.OwnerState_OWNER_STATE_REARMING,
			manager.InterceptDispositionType_WAITING, true,
		},
		{
			manager.InterceptDispositionType_AGENT_ERROR, commandv1.OwnerState_OWNER_STATE_REARMING,
			manager.InterceptDispositionType_AGENT_ERROR, true,
		},
	} {
		row := &commandv1.InterceptRow{Disposition: c.d, OwnerState: c.owner}
		if d, visible := AgentView(row); d != c.want || visible != c.visible {
			t.Errorf("%v %v: %v, %v", c.d, c.owner, d, visible)
		}
		if OwnerView(row) != c.d {
			t.Errorf("the owner sees %v", OwnerView(row))
		}
	}
}
