package link

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"trivet/internal/errs"
	nodev1 "trivet/proto/trivet/node/v1"
)

// Reasons for refusing orders, as the metric has them.
const (
	refusedLower    = "lower"
	refusedForeign  = "foreign_cluster"
	refusedUnfenced = "unfenced"
)

// Reasons of the errors of Ledger.Accept.
const (
	// ReasonForeignCluster: the orders are of another cluster than all before.
	ReasonForeignCluster = "FOREIGN_CLUSTER"
	// ReasonStaleOrders: higher orders were seen before.
	ReasonStaleOrders = "STALE_ORDERS"
)

// ordersFile is where the last orders are kept, in the node's state directory.
const ordersFile = "orders.json"

// CompareFence orders two fences of the same cluster.
func CompareFence(a, b *nodev1.Fence) int {
	return cmp.Or(
		cmp.Compare(a.GetRestoreEpoch(), b.GetRestoreEpoch()),
		cmp.Compare(a.GetTerm(), b.GetTerm()),
		cmp.Compare(a.GetRevision(), b.GetRevision()),
	)
}

// Ledger keeps the highest orders, in memory and on disk.
type Ledger struct {
	path    string
	metrics *Metrics

	mu   sync.Mutex
	last *nodev1.NodeOrders // guarded by mu; nil before the first; immutable
}

// OpenLedger reads what the ledger in dir holds. A ledger that cannot be read
// is an error: without it, orders from the past could not be told apart.
func OpenLedger(dir string, metrics *Metrics) (*Ledger, error) {
	l := &Ledger{path: filepath.Join(dir, ordersFile), metrics: metrics}
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read last orders: %w", err)
	}
	orders := &nodev1.NodeOrders{}
	if err := protojson.Unmarshal(data, orders); err != nil {
		return nil, errs.New(codes.DataLoss, "ORDERS_DAMAGED", "read last orders from %s: %w", l.path, err).
			WithHint("remove the file: the node then takes the manager's next orders, whatever they are")
	}
	l.last = orders
	return l, nil
}

// Last returns the highest orders so far, nil if there were none. Read only.
func (l *Ledger) Last() *nodev1.NodeOrders {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Accept takes orders that are not lower than the highest so far and keeps
// them. An error has ReasonForeignCluster or ReasonStaleOrders, or says that
// they could not be written; in that case they hold for this process only.
func (l *Ledger) Accept(orders *nodev1.NodeOrders) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	fence, last := orders.GetFence(), l.last.GetFence()
	if fence.GetClusterId() == "" {
		l.metrics.ordersRefused.WithLabelValues(refusedUnfenced).Inc()
		return errs.New(codes.InvalidArgument, ReasonStaleOrders, "refuse orders: they name no cluster")
	}
	if last != nil {
		if fence.GetClusterId() != last.GetClusterId() {
			l.metrics.ordersRefused.WithLabelValues(refusedForeign).Inc()
			return errs.New(codes.FailedPrecondition, ReasonForeignCluster,
				"refuse orders: they come from cluster %s, this node belongs to %s",
				fence.GetClusterId(), last.GetClusterId()).
				WithHint("to move the node to the other cluster, stop it and remove %s", l.path)
		}
		if CompareFence(fence, last) < 0 {
			l.metrics.ordersRefused.WithLabelValues(refusedLower).Inc()
			return errs.New(codes.Aborted, ReasonStaleOrders,
				"refuse orders (epoch %d, term %d, revision %d): lower than (%d, %d, %d)",
				fence.GetRestoreEpoch(), fence.GetTerm(), fence.GetRevision(),
				last.GetRestoreEpoch(), last.GetTerm(), last.GetRevision())
		}
	}
	changed := !proto.Equal(orders, l.last)
	l.last = proto.CloneOf(orders)
	l.metrics.orders.Inc()
	if !changed {
		return nil
	}
	return l.write(l.last)
}

// write replaces the file as a whole: a crash leaves the old or the new one.
func (l *Ledger) write(orders *nodev1.NodeOrders) error {
	data, err := protojson.MarshalOptions{Multiline: true}.Marshal(orders)
	if err != nil {
		return fmt.Errorf("keep orders: %w", err)
	}
	tmp := l.path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep orders: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("keep orders: %w", err)
	}
	if err := os.Rename(tmp, l.path); err != nil {
		return fmt.Errorf("keep orders: %w", err)
	}
	return nil
}
