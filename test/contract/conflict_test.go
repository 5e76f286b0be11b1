package contract

import (
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/proto/telepresence/manager"
)

// filters are what an intercept asks for.
type filters struct {
	headers map[string]string
	paths   []string
	wiretap bool
	port    string
}

func (f filters) in(spec *manager.InterceptSpec) *manager.InterceptSpec {
	spec.HeaderFilters, spec.PathFilters, spec.Wiretap = f.headers, f.paths, f.wiretap
	if f.port != "" {
		spec.PortIdentifier = f.port
	}
	return spec
}

func header(kv ...string) filters {
	h := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		h[kv[i]] = kv[i+1]
	}
	return filters{headers: h}
}

func paths(p ...string) filters { return filters{paths: p} }

func (f filters) on(p ...string) filters {
	f.paths = p
	return f
}

// conflict says whether somebody else's intercept is in the way of another.
func conflict(there, asked filters, want bool) func(*site) {
	return func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		made := s.create(sc.sess, there.in(s.spec("one", "web")))
		bob := s.as(s.user("bob"))
		spec := asked.in(s.spec("two", "web"))
		spec.Client = s.user("bob")
		req := &manager.CreateInterceptRequest{Session: s.arriveAs(bob, s.user("bob")), InterceptSpec: spec}
		got, err := bob.PrepareIntercept(s.ctx, req)
		s.must(err)
		if (got.GetError() != "") != want {
			s.Errorf("PrepareIntercept says %q", got.GetError())
		}
		if want && (got.GetErrorCategory() != 1 || !strings.Contains(got.GetError(), made.GetId()) || !strings.Contains(got.GetError(), s.user("alice"))) {
			s.Errorf("the refusal says neither what nor who is in the way: %q", got.GetError())
		}
		code := codes.OK
		if want {
			code = codes.FailedPrecondition
		}
		_, err = bob.CreateIntercept(s.ctx, req)
		s.wantsCode(err, code)
	}
}

var conflictCases = []assertion{
	{"two global ones", conflict(filters{}, filters{}, true)},
	{"a global one and one with a header", conflict(filters{}, header("x-user", "bob"), true)},
	{"one with a path and a global one", conflict(paths("/a"), filters{}, true)},
	{"other ports", conflict(filters{}, filters{port: "admin"}, false)},
	{"the same port by number", conflict(filters{}, filters{port: "8080"}, true)},
	{"a wiretap is asked for", conflict(filters{}, filters{wiretap: true}, false)},
	{"a wiretap is there", conflict(filters{wiretap: true}, filters{}, false)},
	{"headers against paths", conflict(header("x-user", "alice"), paths("/a"), false)},
	{"headers with other values", conflict(header("x-user", "alice"), header("x-user", "bob"), false)},
	{"the same header in another case", conflict(header("x-user", "alice"), header("X-User", "alice"), true)},
	{"headers that are a subset", conflict(header("x-user", "alice"), header("x-user", "alice", "x-env", "test"), true)},
	{"headers of which neither is a subset", conflict(header("x-user", "alice"), header("x-env", "test"), false)},
	{"the same header, other paths", conflict(header("a", "b").on("/a"), header("a", "b").on("/b"), false)},
	{"the same header, one without a path", conflict(header("a", "b").on("/a"), header("a", "b"), true)},
	{"the same path", conflict(paths(":path-equal:/a"), paths("/a"), true)},
	{"other paths", conflict(paths("/a"), paths("/b"), false)},
	{"a prefix of a path", conflict(paths(":path-prefix:/api/"), paths("/api/v1"), true)},
	{"a prefix of a prefix", conflict(paths(":path-prefix:/api/"), paths(":path-prefix:/api/v1/"), true)},
	{"prefixes apart", conflict(paths(":path-prefix:/api/"), paths(":path-prefix:/web/"), false)},
	{"a regex", conflict(paths(":path-regex:.*\\.png"), paths("/a"), true)},
	{"an anchored regex with another literal", conflict(paths(":path-regex:^/img/.*"), paths("/api"), false)},
}
