package identity_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	"trivet/internal/seal"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*clustertest.Wait)
	t.Cleanup(cancel)
	return ctx
}

// rig is a cluster with an operator's client of its first server.
type rig struct {
	*clustertest.Cluster
	t   *testing.T
	ctx context.Context
	op  operatorsvc.OperatorClient
}

func newRig(t *testing.T, servers int, tune func(*cluster.Config)) *rig {
	t.Helper()
	r := &rig{Cluster: clustertest.Start(t, servers, tune), t: t, ctx: testContext(t)}
	r.op = operatorsvc.NewOperatorClient(r.Conn(r.Servers[0], pki.RoleOperator, "olga"))
	r.issuing()
	return r
}

// issuing waits until the issuing CA is in the state.
func (r *rig) issuing() {
	r.t.Helper()
	clustertest.Eventually(r.t, "an issuing CA in the state", func() bool {
		a, err := r.op.GetAuthority(r.ctx, new(operatorv1.GetAuthorityRequest))
		return err == nil && len(a.GetIssuers()) > 0
	})
}

func (r *rig) addresses() []string {
	var out []string
	for _, m := range r.Servers {
		out = append(out, m.Address)
	}
	return out
}

func (r *rig) token(req *operatorv1.CreateTokenRequest) string {
	r.t.Helper()
	resp, err := r.op.CreateToken(r.ctx, req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.GetSecret()
}

func (r *rig) join(dir, token string, role pki.Role, name string, servers ...string) (*enroll.Answer, error) {
	r.t.Helper()
	if len(servers) == 0 {
		servers = r.addresses()
	}
	return enroll.Join(r.ctx, dir, enroll.Request{Token: token, Role: role, Name: name, Servers: servers})
}

// lostAnswer asks a server for a certificate and loses the answer.
func (r *rig) lostAnswer(dir, token, server string) {
	r.t.Helper()
	conf := pki.EnrollConfig(pki.RootHash(r.CA.Root()), time.Now)
	cc, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(portmux.ClientCredentialsFor(pki.ALPNEnroll, conf, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cc.Close()
	lost := errors.New("lost")
	_, err = pki.Obtain(r.ctx, dir, func(ctx context.Context, csr []byte) (pki.Signed, error) {
		_, err := operatorsvc.NewEnrollmentClient(cc).Enroll(ctx, &operatorv1.EnrollRequest{Token: token, Csr: csr})
		return pki.Signed{}, errors.Join(lost, err)
	})
	if err == nil || err.Error() != lost.Error() {
		r.t.Fatal(err) // the question itself went wrong
	}
}

func TestTokenBecomesACertificate(t *testing.T) {
	r := newRig(t, 3, nil)
	text := r.token(&operatorv1.CreateTokenRequest{Role: "client", NameGlob: "al*"})
	dir := filepath.Join(t.TempDir(), "b")
	// On a server that did not make it.
	got, err := r.join(dir, text, pki.RoleClient, "alice", r.Servers[2].Address)
	if err != nil {
		t.Fatal(err)
	}
	want := pki.ID{Cluster: "test", Role: pki.RoleClient, Name: "alice"}
	if got.Bundle.ID != want || got.Keyring != nil {
		t.Errorf("got %s, keyring %v", got.Bundle.ID, got.Keyring)
	}
	if left := time.Until(got.Bundle.NotAfter); left < 11*time.Hour || left > 12*time.Hour {
		t.Errorf("it lives for %s, want 12 h", left)
	}
	many := r.token(&operatorv1.CreateTokenRequest{Role: "client", Uses: 1000})
	clustertest.Eventually(t, "all servers are known", func() bool {
		got, err := r.join(filepath.Join(t.TempDir(), "b"), many, pki.RoleClient, "bob")
		return err == nil && len(got.Servers) == 3
	})
	src, err := pki.OpenSource(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := managersvc.NewManagerClient(r.ConnWith(r.Servers[1], src))
	if _, err := m.ArriveAsClient(r.ctx, &manager.ClientInfo{Name: "alice", InstallId: "i", Product: "p", Version: "2.30.0"}); err != nil {
		t.Error(err)
	}
	list, err := r.op.ListTokens(r.ctx, new(operatorv1.ListTokensRequest))
	if err != nil || len(list.GetTokens()) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	row := list.GetTokens()[slices.IndexFunc(list.GetTokens(), func(x *operatorv1.Token) bool { return x.GetNameGlob() == "al*" })]
	if row.GetUsed() != 1 || row.GetUsesLeft() != 0 || row.GetRole() != "client" || row.GetNameGlob() != "al*" || row.GetCreatedBy() != "spiffe://test/operator/olga" {
		t.Errorf("got %v", row)
	}
}

// TestServersGetTheKeyring: with it they can open what the cluster seals.
func TestServersGetTheKeyring(t *testing.T) {
	r := newRig(t, 1, nil)
	if _, err := r.op.RotateAuthority(r.ctx, new(operatorv1.RotateAuthorityRequest)); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "b")
	got, err := r.join(dir, r.token(&operatorv1.CreateTokenRequest{Role: "server"}), pki.RoleServer, "server-2")
	if err != nil || got.Keyring == nil || len(got.Keyring.IDs()) != 2 || got.Keyring.IDs()[0] != r.Keyring.Active() {
		t.Fatalf("got %v, %v", got, err)
	}
	if kept, err := seal.Load(dir); err != nil || kept.Active() != got.Keyring.Active() {
		t.Errorf("kept: %v, %v", kept, err)
	}
}

func TestTokensAreRefused(t *testing.T) {
	r := newRig(t, 1, nil)
	other := newRig(t, 1, nil)
	good := r.token(&operatorv1.CreateTokenRequest{Role: "node", NameGlob: "n?"})
	if _, err := r.join(filepath.Join(t.TempDir(), "b"), good, pki.RoleNode, "n1"); err != nil {
		t.Fatal(err)
	}
	fresh := func() string { return r.token(&operatorv1.CreateTokenRequest{Role: "node", NameGlob: "n?"}) }
	revoked := fresh()
	parsed, err := enroll.ParseToken(revoked)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.op.RevokeToken(r.ctx, &operatorv1.RevokeTokenRequest{Id: parsed.ID}); err != nil {
		t.Fatal(err)
	}
	guessed, err := enroll.ParseToken(fresh())
	if err != nil {
		t.Fatal(err)
	}
	guessed.Secret[0] ^= 1
	unknown, err := enroll.NewToken(guessed.RootHash)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token  string
		role   pki.Role
		name   string
		reason string
	}{
		"used":             {good, pki.RoleNode, "n1", "TOKEN_USED"},
		"revoked":          {revoked, pki.RoleNode, "n1", "TOKEN_REVOKED"},
		"wrong secret":     {guessed.String(), pki.RoleNode, "n1", "TOKEN_INVALID"},
		"unknown":          {unknown.String(), pki.RoleNode, "n1", "TOKEN_INVALID"},
		"wrong role":       {fresh(), pki.RoleOperator, "n1", "TOKEN_INVALID"},
		"wrong name":       {fresh(), pki.RoleNode, "m1", "TOKEN_INVALID"},
		"no name":          {fresh(), pki.RoleNode, "", "NAME_REQUIRED"},
		"name of no path":  {fresh(), pki.RoleNode, "a/b", pki.ReasonNoIdentity},
		"another cluster":  {other.token(&operatorv1.CreateTokenRequest{Role: "node"}), pki.RoleNode, "n1", pki.ReasonForeignCA},
		"not a token":      {"x", pki.RoleNode, "n1", enroll.ReasonTokenMalformed},
		"role of the text": {fresh(), "", "n2", ""},
	} {
		_, err := r.join(filepath.Join(t.TempDir(), "b"), c.token, c.role, c.name)
		if errs.Reason(err) != c.reason {
			t.Errorf("%s: %v (%s), want %q", name, err, errs.Reason(err), c.reason)
		}
		if err != nil && errs.From(err).Hint == "" {
			t.Errorf("%s: no hint", name)
		}
	}
}

func TestTokensThatCannotBe(t *testing.T) {
	r := newRig(t, 1, nil)
	for name, req := range map[string]*operatorv1.CreateTokenRequest{
		"unknown role": {Role: "king"},
		"no role":      {},
		"bad glob":     {Role: "node", NameGlob: "["},
		"too long":     {Role: "node", Ttl: int64(31 * 24 * time.Hour)},
		"in the past":  {Role: "node", Ttl: -1},
		"many uses":    {Role: "node", Uses: 1 << 30},
	} {
		if _, err := r.op.CreateToken(r.ctx, req); errs.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSameKeyGetsItsCertificateAgain: a lost answer costs no use.
func TestSameKeyGetsItsCertificateAgain(t *testing.T) {
	r := newRig(t, 1, nil)
	text := r.token(&operatorv1.CreateTokenRequest{Role: "node", NameGlob: "n1"})
	dir := filepath.Join(t.TempDir(), "b")
	r.lostAnswer(dir, text, r.Servers[0].Address)
	got, err := r.join(dir, text, "", "")
	if err != nil || got.Bundle.ID.Name != "n1" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := r.join(filepath.Join(t.TempDir(), "c"), text, "", ""); errs.Reason(err) != "TOKEN_USED" {
		t.Errorf("another key: %v", err)
	}
}

// TestWithoutACertificateNothingElseIsReached walks every rpc of the server.
func TestWithoutACertificateNothingElseIsReached(t *testing.T) {
	r := newRig(t, 1, nil)
	conf := pki.EnrollConfig(pki.RootHash(r.CA.Root()), time.Now)
	cc, err := grpc.NewClient("passthrough:///"+r.Servers[0].Address, grpc.WithTransportCredentials(portmux.ClientCredentialsFor(pki.ALPNEnroll, conf, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	for service, info := range r.Servers[0].Server.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			err := cc.Invoke(r.ctx, "/"+service+"/"+m.Name, &emptypb.Empty{}, &emptypb.Empty{})
			want := codes.Unimplemented // it is not even registered there
			switch m.Name {
			case "Enroll":
				want = codes.InvalidArgument
			case "Renew":
				want = codes.Unauthenticated
			}
			if errs.Code(err) != want {
				t.Errorf("%s/%s: %v, want %v", service, m.Name, err, want)
			}
		}
	}
	big := &operatorv1.EnrollRequest{Token: strings.Repeat("x", 100<<10)}
	if _, err := operatorsvc.NewEnrollmentClient(cc).Enroll(r.ctx, big); errs.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large question: %v", err)
	}
}

// TestRenewal: with a certificate that is valid or ended in its window, and
// with nothing else.
func TestRenewal(t *testing.T) {
	r := newRig(t, 3, nil)
	old := func(role pki.Role, name string, ended time.Duration) *pki.Source {
		t.Helper()
		b, err := r.CA.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: name}, TTL: time.Hour}, time.Now().Add(-time.Hour-ended))
		if err != nil {
			t.Fatal(err)
		}
		return pki.NewSource(b)
	}
	renew := func(src *pki.Source) error {
		return src.Renew(r.ctx, enroll.Asker(src, r.addresses))
	}
	for name, c := range map[string]struct {
		src    *pki.Source
		reason string
	}{
		"node, valid":              {old(pki.RoleNode, "n1", -time.Minute), ""},
		"node, 6 d":                {old(pki.RoleNode, "n1", 6*24*time.Hour), ""},
		"node, 8 d":                {old(pki.RoleNode, "n1", 8*24*time.Hour), pki.ReasonExpired},
		"client, 2 d":              {old(pki.RoleClient, "alice", 48*time.Hour), ""},
		"client, 4 d":              {old(pki.RoleClient, "alice", 96*time.Hour), pki.ReasonExpired},
		"operator, an hour":        {old(pki.RoleOperator, "olga", time.Hour), ""},
		"debug, valid":             {old(pki.RoleDebug, "dora", -time.Minute), "NOT_RENEWABLE"},
		"server of another server": {old(pki.RoleServer, "server-9", time.Hour), ""},
	} {
		before := c.src.Bundle()
		err := renew(c.src)
		if errs.Reason(err) != c.reason {
			t.Errorf("%s: %v (%s), want %q", name, err, errs.Reason(err), c.reason)
		}
		if err == nil && (!c.src.Bundle().NotAfter.After(time.Now()) || c.src.Bundle() == before) {
			t.Errorf("%s: it ends at %s", name, c.src.Bundle().NotAfter)
		}
	}
	// Who is denied gets no other certificate, by any way.
	src := old(pki.RoleNode, "n2", time.Hour)
	deny := &operatorv1.SetIdentityRequest{Uri: "spiffe://test/node/n2", Denied: true, Reason: "stolen"}
	if _, err := r.op.SetIdentity(r.ctx, deny); err != nil {
		t.Fatal(err)
	}
	if err := renew(src); errs.Reason(err) != "IDENTITY_DENIED" {
		t.Errorf("denied: %v", err)
	}
	text := r.token(&operatorv1.CreateTokenRequest{Role: "node"})
	if _, err := r.join(filepath.Join(t.TempDir(), "b"), text, pki.RoleNode, "n2"); errs.Reason(err) != "IDENTITY_DENIED" {
		t.Errorf("denied, with a token: %v", err)
	}
	if _, err := r.op.SetIdentity(r.ctx, &operatorv1.SetIdentityRequest{Uri: "spiffe://test/node/n2"}); err != nil {
		t.Fatal(err)
	}
	if err := renew(src); err != nil {
		t.Errorf("allowed again: %v", err)
	}
}

// TestRotation: a new issuing CA and a new seal key, while old certificates go
// on; all servers can use both, also after a restart.
func TestRotation(t *testing.T) {
	r := newRig(t, 3, nil)
	before := r.Source(pki.RoleClient, "alice")
	caDir := filepath.Join(r.Dir, "ca")
	next, err := pki.PrepareIssuing(caDir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := next.IssuingPEM()
	if err != nil {
		t.Fatal(err)
	}
	var id string
	for range 2 { // repeated after a lost answer
		resp, err := r.op.RotateAuthority(r.ctx, &operatorv1.RotateAuthorityRequest{Certificate: cert, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		id = resp.GetIssuer().GetId()
	}
	if err := pki.CommitIssuing(caDir); err != nil {
		t.Fatal(err)
	}
	resp, err := r.op.RotateAuthority(r.ctx, new(operatorv1.RotateAuthorityRequest))
	if err != nil {
		t.Fatal(err)
	}
	sealKey := strings.TrimPrefix(resp.GetIssuer().GetId(), "seal/")
	check := func(m *clustertest.Member) {
		t.Helper()
		op := operatorsvc.NewOperatorClient(r.Conn(m, pki.RoleOperator, "olga"))
		clustertest.Eventually(t, m.Name+" has the new keys", func() bool {
			a, err := op.GetAuthority(r.ctx, new(operatorv1.GetAuthorityRequest))
			return err == nil && a.GetSealKeyId() == sealKey && len(a.GetSealKeyIds()) == 2 && len(a.GetIssuers()) == 2
		})
		text := r.token(&operatorv1.CreateTokenRequest{Role: "node", NameGlob: "n1"})
		got, err := r.join(filepath.Join(t.TempDir(), "b"), text, "", "", m.Address)
		if err != nil {
			t.Fatal(err)
		}
		if issuer := got.Bundle.Leaf(); issuer.CheckSignatureFrom(next.Issuing()) != nil {
			t.Errorf("%s signs with another CA", m.Name)
		}
		v := managersvc.NewManagerClient(r.ConnWith(m, before))
		if _, err := v.Version(r.ctx, new(emptypb.Empty)); err != nil {
			t.Errorf("an old certificate at %s: %v", m.Name, err)
		}
		clustertest.Eventually(t, "the keyring is kept", func() bool {
			ring, err := seal.Load(m.DataDir)
			return err == nil && ring.Active() == sealKey
		})
	}
	for _, m := range r.Servers {
		check(m)
	}
	// The issuing CA's key is sealed anew, and the first keyring still does.
	a, err := r.op.GetAuthority(r.ctx, new(operatorv1.GetAuthorityRequest))
	if err != nil || !slices.ContainsFunc(a.GetIssuers(), func(i *operatorv1.Issuer) bool { return i.GetId() == id && i.GetActive() }) {
		t.Errorf("got %v, %v", a, err)
	}
	last := r.Servers[2]
	r.Stop(last)
	r.Restart(last)
	r.Leader()
	check(last)
	// One that lost its keyring and has that of its bundle learns the newer
	// ones from the state.
	r.Stop(last)
	if err := os.Remove(filepath.Join(last.DataDir, seal.FileName)); err != nil {
		t.Fatal(err)
	}
	r.Restart(last)
	r.Leader()
	check(last)
	r.SameDigests()
}

func TestForeignIssuingCAIsRefused(t *testing.T) {
	r, other := newRig(t, 1, nil), newRig(t, 1, nil)
	cert, key, err := other.CA.IssuingPEM()
	if err != nil {
		t.Fatal(err)
	}
	own, _, err := r.CA.IssuingPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, req := range map[string]*operatorv1.RotateAuthorityRequest{
		"another root":    {Certificate: cert, Key: key},
		"another key":     {Certificate: own, Key: key},
		"no key":          {Certificate: own},
		"no certificate":  {Key: key},
		"the root itself": {Certificate: r.CA.RootPEM(), Key: key},
	} {
		if _, err := r.op.RotateAuthority(r.ctx, req); errs.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDenialEndsWhatIsOpen: streams and connections, on every server, within
// two seconds.
func TestDenialEndsWhatIsOpen(t *testing.T) {
	r := newRig(t, 3, nil)
	type open struct {
		stream grpc.ServerStreamingClient[manager.InterceptInfoSnapshot]
		name   string
	}
	var streams []open
	var conns []*grpc.ClientConn
	for _, m := range r.Servers {
		cc := r.Conn(m, pki.RoleViewer, "victor")
		s, err := managersvc.NewManagerClient(cc).WatchIntercepts(r.ctx, new(manager.SessionInfo))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		conns, streams = append(conns, cc), append(streams, open{s, m.Name})
	}
	other, err := managersvc.NewManagerClient(r.Conn(r.Servers[0], pki.RoleViewer, "vera")).WatchIntercepts(r.ctx, new(manager.SessionInfo))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Recv(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	uri := "spiffe://test/viewer/victor"
	if _, err := r.op.SetIdentity(r.ctx, &operatorv1.SetIdentityRequest{Uri: uri, Denied: true, Reason: "left the firm"}); err != nil {
		t.Fatal(err)
	}
	for i, s := range streams {
		_, err := s.stream.Recv()
		if errs.Reason(err) != "IDENTITY_DENIED" || errs.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "left the firm") {
			t.Errorf("%s: the stream ended with %v", s.name, err)
		}
		// The next call is refused with the reason, on whatever connection.
		clustertest.Eventually(t, "a refusal", func() bool {
			_, err := managersvc.NewManagerClient(conns[i]).Version(r.ctx, new(emptypb.Empty))
			return errs.Reason(err) == "IDENTITY_DENIED"
		})
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	list, err := r.op.ListIdentities(r.ctx, new(operatorv1.ListIdentitiesRequest))
	if err != nil || len(list.GetIdentities()) != 1 || list.GetIdentities()[0].GetUri() != uri || !list.GetIdentities()[0].GetDenied() {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := r.op.SetIdentity(r.ctx, &operatorv1.SetIdentityRequest{Uri: uri}); err != nil {
		t.Fatal(err)
	}
	for i := range conns {
		clustertest.Eventually(t, "it is let in again", func() bool {
			_, err := managersvc.NewManagerClient(conns[i]).Version(r.ctx, new(emptypb.Empty))
			return err == nil
		})
	}
	if _, err := r.op.SetIdentity(r.ctx, &operatorv1.SetIdentityRequest{Uri: "spiffe://test/operator/olga", Denied: true}); errs.Reason(err) != "OWN_IDENTITY" {
		t.Errorf("denying oneself: %v", err)
	}
	for _, bad := range []string{"", "alice", "spiffe://prod/client/alice"} {
		if _, err := r.op.SetIdentity(r.ctx, &operatorv1.SetIdentityRequest{Uri: bad, Denied: true}); errs.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
