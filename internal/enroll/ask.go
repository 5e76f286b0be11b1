package enroll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	"trivet/internal/seal"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// ReasonNoServer: none of the servers could be asked.
const ReasonNoServer = "NO_SERVER"

const (
	// attemptTimeout bounds one question to one server, which holds it for up
	// to 5 s while there is no leader.
	attemptTimeout = 8 * time.Second
	pauseMin       = 50 * time.Millisecond
	pauseMax       = time.Second
)

// Request is for a first certificate.
type Request struct {
	// Token as its holder got it.
	Token string
	// Role and Name are who to be; either may be empty, and then the token's
	// own is taken if it has just one.
	Role pki.Role
	Name string
	// Servers are addresses, host:port; one is enough.
	Servers []string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Answer is what came with a first certificate.
type Answer struct {
	Bundle *pki.Bundle
	// Servers are the main addresses of all servers.
	Servers []string
	// Keyring is the seal keys, for a server; else nil. They are beside the
	// bundle already.
	Keyring *seal.Keyring
}

// Join gets the first certificate and writes it to dir. It asks again until
// ctx ends as long as no server gave an answer that will not change.
func Join(ctx context.Context, dir string, r Request) (*Answer, error) {
	token, err := ParseToken(r.Token)
	if err != nil {
		return nil, err
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	conf := pki.EnrollConfig(token.RootHash, r.Now)
	creds := portmux.ClientCredentialsFor(pki.ALPNEnroll, conf, explainJoin)
	out := new(Answer)
	out.Bundle, err = pki.Obtain(ctx, dir, func(ctx context.Context, csr []byte) (pki.Signed, error) {
		resp, err := ask(ctx, r.Servers, creds, func(ctx context.Context, c operatorsvc.EnrollmentClient) (*operatorv1.EnrollResponse, error) {
			return c.Enroll(ctx, &operatorv1.EnrollRequest{Token: r.Token, Role: string(r.Role), Name: r.Name, Csr: csr})
		})
		if err != nil {
			return pki.Signed{}, err
		}
		out.Servers = resp.GetServers()
		if raw := resp.GetKeyring(); len(raw) > 0 {
			// Before the certificate, with which the bundle counts as complete.
			if out.Keyring, err = seal.Decode(raw); err == nil {
				err = out.Keyring.Save(dir)
			}
		}
		return pki.Signed{Chain: resp.GetChain(), Roots: resp.GetRoots()}, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// explainJoin makes an error of a handshake without a certificate of our own
// one that ends a waiting call.
func explainJoin(err error) error {
	var typed *errs.Error
	if errors.As(err, &typed) {
		return typed
	}
	return err
}

// Asker asks servers for the next certificate of src, with the present one.
func Asker(src *pki.Source, servers func() []string) pki.SignFunc {
	conf := pki.ClientConfig(src, pki.Policy{ALPN: []string{pki.ALPNEnroll}, Roles: []pki.Role{pki.RoleServer}})
	creds := portmux.ClientCredentialsFor(pki.ALPNEnroll, conf, func(err error) error { return pki.ExplainHandshake(err, src) })
	return func(ctx context.Context, csr []byte) (pki.Signed, error) {
		resp, err := ask(ctx, servers(), creds, func(ctx context.Context, c operatorsvc.EnrollmentClient) (*operatorv1.EnrollResponse, error) {
			return c.Renew(ctx, &operatorv1.RenewRequest{Csr: csr})
		})
		return pki.Signed{Chain: resp.GetChain(), Roots: resp.GetRoots()}, err
	}
}

// ask puts a question to the servers in turn until one answers. What a server
// answered for good ends it, what no connection could bring about does after
// all servers had their turn; the rest is tried again until ctx ends.
func ask[T any](ctx context.Context, servers []string, creds credentials.TransportCredentials,
	question func(context.Context, operatorsvc.EnrollmentClient) (T, error),
) (T, error) {
	var zero T
	if len(servers) == 0 {
		return zero, errs.New(codes.InvalidArgument, ReasonNoServer, "no server is named").WithHint("give the address of one, host:port")
	}
	pause := pauseMin
	for {
		var failed []string
		var first error
		again := false
		for _, addr := range servers {
			out, err := askOne(ctx, addr, creds, question)
			if err == nil {
				return out, nil
			}
			if answered(err) {
				return zero, err
			}
			again = again || !refused(err)
			failed = append(failed, fmt.Sprintf("%s: %v", addr, err))
			if first == nil {
				first = err
			}
		}
		if !again {
			return zero, first
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, pauseMax)
		case <-ctx.Done():
			return zero, errs.New(codes.Unavailable, ReasonNoServer, "no server answered for good: %s", strings.Join(failed, "; ")).
				WithHint("check that the servers run and that these addresses are right, then repeat the command: it goes on where it was")
		}
	}
}

func askOne[T any](ctx context.Context, addr string, creds credentials.TransportCredentials,
	question func(context.Context, operatorsvc.EnrollmentClient) (T, error),
) (T, error) {
	var zero T
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig())
	if err != nil {
		return zero, fmt.Errorf("dial %s: %w", addr, err)
	}
	defer cc.Close()
	out, err := question(ctx, operatorsvc.NewEnrollmentClient(cc))
	if err != nil {
		return zero, errs.From(err)
	}
	return out, nil
}

// refused says that the connection did not come about because of who the ends
// are.
func refused(err error) bool {
	switch errs.Reason(err) {
	case pki.ReasonExpired, pki.ReasonNotYetValid, pki.ReasonForeignCA, pki.ReasonWrongCluster, pki.ReasonWrongRole,
		pki.ReasonNoIdentity, pki.ReasonWrongUsage, pki.ReasonRefused, pki.ReasonProtocol:
		return true
	}
	return false
}

// answered says that a server gave an answer that will be the same next time.
func answered(err error) bool {
	if refused(err) {
		return false
	}
	switch errs.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted, codes.Unknown:
		return false
	}
	return true
}
