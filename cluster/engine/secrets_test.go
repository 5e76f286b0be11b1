package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"testing"

	commandv1 "trivet/proto/trivet/command/v1"
)

// hiding seals a configuration's value; each time under another key.
type hiding struct{ key byte }

func (h *hiding) Digest(data []byte) []byte {
	sum := sha256.Sum256(append([]byte("keyed"), data...))
	return sum[:]
}

func (h *hiding) Seal(cmd *commandv1.Command) {
	h.key++
	cmd.Op = &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: cmd.GetPutConfig().GetKey(), Value: []byte{h.key}}}
}

// TestSecretsAreSealedAfterTheDigest: the log sees no secret, and a command
// that is sent again is the same one although it is sealed differently.
func TestSecretsAreSealedAfterTheDigest(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.cfg.Secrets = new(hiding)
		r.lead("self")
		r.propose = func(_ context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
			return []*commandv1.Result{{}}, nil
		}
		for range 2 {
			op := &commandv1.Command{Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: "k", Value: []byte("secret")}}}
			if _, err := r.Propose(t.Context(), "x", &Request{Writer: "w", Number: 1, Lowest: 1}, op); err != nil {
				t.Fatal(err)
			}
		}
		if len(r.asked) != 2 {
			t.Fatalf("%d commands were proposed", len(r.asked))
		}
		a, b := r.asked[0], r.asked[1]
		if string(a.GetPutConfig().GetValue()) == "secret" || bytes.Equal(a.GetPutConfig().GetValue(), b.GetPutConfig().GetValue()) {
			t.Errorf("proposed %q and %q", a.GetPutConfig().GetValue(), b.GetPutConfig().GetValue())
		}
		if !bytes.Equal(a.GetRequestId().GetPayloadDigest(), b.GetRequestId().GetPayloadDigest()) {
			t.Error("the same command has two digests")
		}
		plain, err := new(Engine).payloadDigest(&commandv1.Command{
			Version: a.GetVersion(), Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: "k", Value: []byte("secret")}},
		})
		if err != nil || bytes.Equal(plain, a.GetRequestId().GetPayloadDigest()) {
			t.Errorf("the digest could be made by whoever guesses the secret, %v", err)
		}
	})
}
