package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/cluster/archive"
	"trivet/cluster/engine"
	"trivet/cluster/integrity"
	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/chunks"
	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

const (
	// incoming is the pattern of the files in which states wait that are not this
	// server's yet. A crash leaves them; the next start removes them.
	incoming = "incoming-*"
	// digestsSent bounds the digests in one answer.
	digestsSent = 64
	// sendState bounds the wait for a revision before a state is sent.
	sendState = 10 * time.Second
)

// states compares, passes on and replaces the state; peerapi.States and
// integrity.Peers.
type states struct{ s *Server }

// Digests implements peerapi.States.
func (x states) Digests(from uint64) *peerv1.DigestsResponse {
	out := &peerv1.DigestsResponse{Id: x.s.replica.ID(), Schema: fsm.SchemaVersion}
	digests := x.s.machine.Digests(from)
	for _, at := range digests[:min(len(digests), digestsSent)] {
		out.Digests = append(out.Digests, &peerv1.DigestAt{Revision: at.Revision, Digest: at.Digest[:]})
	}
	return out
}

// State implements peerapi.States.
func (x states) State(ctx context.Context, min uint64) (*fsm.Snapshot, error) {
	if x.s.monitor.Diverged() {
		return nil, errDiverged()
	}
	ctx, cancel := context.WithTimeout(ctx, sendState)
	defer cancel()
	if err := x.s.replica.WaitRevision(ctx, min); err != nil {
		return nil, errs.New(codes.Unavailable, "BEHIND", "this server did not get to revision %d: %w", min, err)
	}
	return x.s.machine.Snapshot(), nil
}

// Restore implements peerapi.States.
func (x states) Restore(ctx context.Context, identity string, in io.Reader) (*peerv1.RestoreResponse, error) {
	if x.s.replica.LeaderTerm() == 0 {
		return nil, errs.New(codes.Unavailable, "NOT_LEADER", "this server is not the leader")
	}
	a, err := openArchive(in)
	if err != nil {
		return nil, err
	}
	root, err := x.s.restoreHere(ctx, identity, a)
	if err != nil {
		return nil, err
	}
	return &peerv1.RestoreResponse{Revision: root.Revision(), RestoreEpoch: root.Meta().GetRestoreEpoch()}, nil
}

func openArchive(in io.Reader) (*archive.Archive, error) {
	a, err := archive.Open(in)
	switch {
	case errors.Is(err, archive.ErrDamaged):
		return nil, errs.New(codes.InvalidArgument, "SNAPSHOT_DAMAGED", "%w", err).WithHint("nothing was changed; take another copy of the snapshot")
	case err != nil:
		return nil, errs.New(codes.InvalidArgument, "SNAPSHOT_UNUSABLE", "%w", err).WithHint("nothing was changed; restore with the version that saved it, or a newer one")
	}
	return a, nil
}

// SaveSnapshot writes an archive of a state that holds every write acknowledged
// before the call.
func (v *clusterView) SaveSnapshot(ctx context.Context, w io.Writer) (archive.Meta, error) {
	if _, err := v.engine.Read(ctx, engine.Linearizable, 0); err != nil {
		return archive.Meta{}, err
	}
	return archive.Write(w, v.machine.Snapshot(), archive.Origin{Server: v.cfg.Name, Version: v.cfg.Version, At: time.Now()})
}

// RestoreSnapshot puts the state of an archive in the place of the cluster's.
// The archive is read to its end and checked before anything changes.
func (v *clusterView) RestoreSnapshot(ctx context.Context, identity string, in io.Reader) (*operatorv1.RestoreSnapshotResponse, error) {
	s := (*Server)(v)
	f, err := os.CreateTemp(s.cfg.DataDir, incoming)
	if err != nil {
		return nil, fmt.Errorf("make room for the snapshot: %w", err)
	}
	defer discard(f)
	if _, err := io.Copy(f, in); err != nil {
		return nil, fmt.Errorf("receive the snapshot: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the snapshot: %w", err)
	}
	a, err := openArchive(f)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.RestoreSnapshotResponse{
		Sessions: uint64(a.Snapshot.Root().Len(fsm.TableSessions)), Intercepts: uint64(a.Snapshot.Root().Len(fsm.TableIntercepts)),
	}
	err = s.atLeader(ctx, func() error {
		root, err := s.restoreHere(ctx, identity, a)
		if err == nil {
			out.Revision, out.RestoreEpoch = root.Revision(), root.Meta().GetRestoreEpoch()
		}
		return err
	}, func(c peersvc.PeerClient) error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("read the snapshot: %w", err)
		}
		resp, err := sendArchive(ctx, c, identity, f)
		out.Revision, out.RestoreEpoch = resp.GetRevision(), resp.GetRestoreEpoch()
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func discard(f *os.File) {
	// It is a copy; nothing is lost when it stays until the next start.
	_ = f.Close()
	_ = os.Remove(f.Name())
}

func sendArchive(ctx context.Context, c peersvc.PeerClient, identity string, in io.Reader) (*peerv1.RestoreResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Restore(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&peerv1.RestoreChunk{Identity: identity}); err != nil {
		return closed(stream)
	}
	err = chunks.Copy(func(p []byte) error { return stream.Send(&peerv1.RestoreChunk{Data: p}) }, in)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("send the snapshot to the leader: %w", err)
	}
	return closed(stream)
}

// closed ends the sending; the answer has the reason when the leader ended it.
func closed(stream interface {
	CloseAndRecv() (*peerv1.RestoreResponse, error)
},
) (*peerv1.RestoreResponse, error) {
	return stream.CloseAndRecv()
}

// restoreHere gives the state of an archive to Raft on the leader and returns
// the state as it is afterwards.
func (s *Server) restoreHere(ctx context.Context, identity string, a *archive.Archive) (*fsm.Root, error) {
	if cluster := s.cfg.Source.Bundle().ID.Cluster; a.Meta.ClusterID != cluster {
		return nil, errs.New(codes.FailedPrecondition, "OTHER_CLUSTER", "the snapshot is of cluster %q, this is cluster %q", a.Meta.ClusterID, cluster).
			WithHint("nothing was changed; restore it on servers with certificates of its own cluster")
	}
	before := s.machine.Root()
	snap := a.Snapshot.Restored(before)
	f, err := os.CreateTemp(s.cfg.DataDir, incoming)
	if err != nil {
		return nil, fmt.Errorf("make room for the state: %w", err)
	}
	defer discard(f)
	size, err := snap.WriteTo(f)
	if err != nil {
		return nil, fmt.Errorf("write the state: %w", err)
	}
	// Raft ends the process when it cannot read what it is given.
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the state back: %w", err)
	}
	if err := fsm.New(fsm.Options{RingSize: 1}).Restore(f); err != nil {
		return nil, fmt.Errorf("read the state back: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the state back: %w", err)
	}
	s.log.Warn("restoring a snapshot", "by", identity, "from_revision", before.Revision(), "snapshot_revision", a.Meta.Revision, "epoch", snap.Root().Meta().GetRestoreEpoch())
	p := snap.Root().Position()
	if err := s.replica.RestoreState(ctx, replica.Position{Term: p.Term, Index: p.Index}, size, f); err != nil {
		return nil, restoreError(err)
	}
	s.restoredState()
	return snap.Root(), nil
}

func restoreError(err error) error {
	switch {
	case errors.Is(err, replica.ErrNotLeader):
		return errs.New(codes.Unavailable, "NOT_LEADER", "%w", err)
	case errors.Is(err, replica.ErrUnknownOutcome):
		return errs.New(codes.Unavailable, "UNKNOWN_OUTCOME", "%w", err).
			WithHint("look at the restore epoch with `trivet operator raft info` and restore again if it has not grown")
	}
	return errs.New(codes.Aborted, "RESTORE_FAILED", "%w", err).WithHint("nothing was changed; try again")
}

// restoredState tells lead that the actors' view is of another past.
func (s *Server) restoredState() {
	select {
	case s.restored <- struct{}{}:
	default:
	}
}

// removeIncoming removes what a crash left: states on their way, and files that
// were being written to take the place of another.
func removeIncoming(dir string) error {
	for _, pattern := range []string{incoming, "*.tmp", ".*.tmp-*"} {
		left, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range left {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("remove a file that was left behind: %w", err)
			}
		}
	}
	return nil
}

// comparer asks the other voters for their digests; integrity.Peers.
type comparer struct{ s *Server }

// Voters implements integrity.Peers.
func (c comparer) Voters() []string {
	list, _, err := c.s.replica.Members()
	if err != nil {
		return nil
	}
	var out []string
	for _, x := range list {
		if x.Voter {
			out = append(out, x.ID)
		}
	}
	return out
}

// Digests implements integrity.Peers.
func (c comparer) Digests(ctx context.Context, id string, from uint64) (integrity.Answer, error) {
	client, err := c.s.dir.ClientOf(id)
	if err != nil {
		return integrity.Answer{}, err
	}
	resp, err := client.Digests(ctx, &peerv1.DigestsRequest{FromRevision: from})
	if err != nil {
		return integrity.Answer{}, err
	}
	a := integrity.Answer{ID: resp.GetId(), Schema: resp.GetSchema()}
	for _, d := range resp.GetDigests() {
		at := fsm.DigestAt{Revision: d.GetRevision()}
		copy(at.Digest[:], d.GetDigest())
		a.Digests = append(a.Digests, at)
	}
	return a, nil
}

// heal takes the state of another server over.
func (s *Server) heal(ctx context.Context, from string) error {
	client, err := s.dir.ClientOf(from)
	if err != nil {
		return err
	}
	return s.replica.SwapState(func(have *fsm.Root) (io.ReadCloser, error) {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := client.FetchState(ctx, &peerv1.FetchStateRequest{MinRevision: have.Revision()})
		if err != nil {
			cancel()
			return nil, fmt.Errorf("fetch the state of server %s: %w", from, err)
		}
		return &stateReader{chunks.Reader(func() ([]byte, error) {
			c, err := stream.Recv()
			return c.GetData(), err
		}), cancel}, nil
	})
}

// stateReader is a state on its way here.
type stateReader struct {
	io.Reader
	cancel context.CancelFunc
}

// Close ends the stream.
func (r *stateReader) Close() error { r.cancel(); return nil }
