package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/internal/errs"
)

func TestExplainHandshake(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	alice := issue(t, ca, RoleClient, "alice", time.Hour)
	good := NewSource(alice, clockAt(testNow))
	expired := NewSource(alice, clockAt(testNow.Add(2*time.Hour)))
	early := NewSource(alice, clockAt(testNow.Add(-2*time.Hour)))
	viaGRPC := func(alert string) error {
		return status.Error(codes.Unavailable,
			`connection error: desc = "error reading server preface: remote error: tls: `+alert+`"`)
	}
	typed := errs.New(codes.Unauthenticated, ReasonWrongCluster, "x")
	for _, tc := range []struct {
		name string
		err  error
		src  *Source
		want string
	}{
		{"own certificate expired", viaGRPC("expired certificate"), expired, ReasonExpired},
		{"own certificate expired, other alert", viaGRPC("bad certificate"), expired, ReasonExpired},
		{"own certificate too new", viaGRPC("expired certificate"), early, ReasonNotYetValid},
		{"clocks differ", viaGRPC("expired certificate"), good, ReasonExpired},
		{"foreign", viaGRPC("unknown certificate authority"), good, ReasonForeignCA},
		{"refused", viaGRPC("bad certificate"), good, ReasonRefused},
		{"denied", viaGRPC("access denied"), good, ReasonRefused},
		{"none sent", viaGRPC("certificate required"), good, ReasonNoIdentity},
		{"no common protocol", viaGRPC("no application protocol"), good, ReasonProtocol},
		{"no common version", viaGRPC("protocol version not supported"), expired, ReasonProtocol},
		{"alert lost in a reset", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, expired, ReasonExpired},
		{"end instead of alert", io.EOF, expired, ReasonExpired},
		{"typed already", fmt.Errorf("dial: %w", typed), expired, ReasonWrongCluster},
	} {
		got := ExplainHandshake(tc.err, tc.src)
		if errs.Reason(got) != tc.want {
			t.Errorf("%s: %v (%s), want %s", tc.name, got, errs.Reason(got), tc.want)
		}
		if !errors.Is(got, typed) && errs.From(got).Hint == "" {
			t.Errorf("%s: no hint with %v", tc.name, got)
		}
	}
	for _, err := range []error{nil, io.EOF, context.Canceled, errors.New("no route to host")} {
		if got := ExplainHandshake(err, good); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestExplainNamesTheEndAndTheWayOut(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	server := NewSource(issue(t, ca, RoleServer, "s1", 24*time.Hour), clockAt(testNow.Add(2*time.Hour)))
	client := NewSource(issue(t, ca, RoleClient, "alice", time.Hour), clockAt(testNow.Add(2*time.Hour)))
	out := shake(t, ServerConfig(server, Policy{Roles: Roles()}), ClientConfig(client, Policy{}))
	err := errs.From(ExplainHandshake(out.clientError, client))
	for _, want := range []string{"your certificate", "spiffe://prod/client/alice", "expired at 2026-03-01T13:00:00Z"} {
		if !strings.Contains(err.Message, want) {
			t.Errorf("message %q does not have %q", err.Message, want)
		}
	}
	if !strings.Contains(err.Hint, "trivet login") {
		t.Errorf("hint %q", err.Hint)
	}
	if got := ExplainHandshake(out.serverErr, server); errs.Reason(got) != ReasonExpired ||
		!strings.Contains(got.Error(), "certificate of spiffe://prod/client/alice expired") {
		t.Errorf("server: %v", got)
	}
}

// plain is a connection whose peer speaks HTTP.
type plain struct {
	net.Conn
	io.Reader
}

func (p plain) Read(b []byte) (int, error)       { return p.Reader.Read(b) }
func (plain) Write(b []byte) (int, error)        { return len(b), nil }
func (plain) Close() error                       { return nil }
func (plain) SetWriteDeadline(_ time.Time) error { return nil }

func TestExplainPeerWithoutTLS(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	src := NewSource(issue(t, ca, RoleClient, "alice", 0), clockAt(testNow))
	nc := plain{Reader: bytes.NewBufferString("HTTP/1.1 400 Bad Request\r\n\r\n")}
	err := tls.Client(nc, ClientConfig(src, Policy{})).Handshake()
	if got := ExplainHandshake(err, src); errs.Reason(got) != ReasonProtocol {
		t.Errorf("%v, want %s", got, ReasonProtocol)
	}
}
