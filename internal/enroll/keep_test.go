package enroll

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// keeper is a source without files whose CA is at hand. It is made inside a
// bubble, whose clock it follows.
type keeper struct {
	ca    *pki.CA
	src   *pki.Source
	fail  atomic.Bool
	asked atomic.Int64
}

func newKeeper(t *testing.T, role pki.Role, ttl time.Duration) *keeper {
	t.Helper()
	ca, err := pki.InitCA(filepath.Join(t.TempDir(), "ca"), "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ca.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: "x"}, TTL: ttl}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &keeper{ca: ca, src: pki.NewSource(b)}
}

func (k *keeper) sign(_ context.Context, csr []byte) (pki.Signed, error) {
	k.asked.Add(1)
	if k.fail.Load() {
		return pki.Signed{}, errors.New("no server")
	}
	chain, err := k.ca.SignCSR(csr, pki.Template{ID: k.src.Bundle().ID}, time.Now())
	return pki.Signed{Chain: chain, Roots: k.ca.RootPEM()}, err
}

func (k *keeper) keep(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Keep(ctx, k.src, k.sign, slog.New(slog.NewTextHandler(io.Discard, nil)))
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func TestKeepRenewsForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t, pki.RoleNode, 24*time.Hour)
		k.keep(t)
		for hour := range 30 * 24 {
			time.Sleep(time.Hour)
			if left := time.Until(k.src.Bundle().NotAfter); left < 6*time.Hour {
				t.Fatalf("%s left after %d hours", left, hour)
			}
		}
		if n := k.asked.Load(); n < 30 || n > 50 {
			t.Errorf("%d renewals in 30 days, want one in 16 hours", n)
		}
	})
}

func TestKeepTriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t, pki.RoleClient, 12*time.Hour)
		k.fail.Store(true)
		k.keep(t)
		time.Sleep(11 * time.Hour)
		if n := k.asked.Load(); n < 10 || n > 200 {
			t.Errorf("%d attempts in 3 hours", n)
		}
		k.fail.Store(false)
		time.Sleep(retryMax + lookEvery)
		if left := time.Until(k.src.Bundle().NotAfter); left < 11*time.Hour {
			t.Errorf("%s left although servers are back", left)
		}
	})
}

// TestKeepAfterSleep: a machine that slept finds its certificate ended and
// renews it at once.
func TestKeepAfterSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t, pki.RoleClient, 12*time.Hour)
		time.Sleep(20 * time.Hour)
		k.keep(t)
		synctest.Wait()
		if left := time.Until(k.src.Bundle().NotAfter); left < 11*time.Hour {
			t.Errorf("%s left", left)
		}
	})
}

func TestKeepLeavesDebugAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t, pki.RoleDebug, time.Hour)
		k.keep(t)
		time.Sleep(2 * time.Hour)
		if n := k.asked.Load(); n != 0 {
			t.Errorf("%d attempts to renew what is not renewed", n)
		}
	})
}

func TestRefreshDoesNothingEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t, pki.RoleClient, 12*time.Hour)
		// Nobody is there to be asked.
		if err := Refresh(t.Context(), k.src, nil); err != nil {
			t.Error(err)
		}
		time.Sleep(11 * time.Hour)
		if err := Refresh(t.Context(), k.src, nil); err != nil {
			t.Errorf("still valid: %v", err)
		}
		time.Sleep(2 * time.Hour)
		if err := Refresh(t.Context(), k.src, nil); errs.Reason(err) != ReasonNoServer {
			t.Errorf("ended: %v", err)
		}
		time.Sleep(96 * time.Hour)
		if err := Refresh(t.Context(), k.src, nil); errs.Reason(err) != pki.ReasonExpired {
			t.Errorf("ended for good: %v", err)
		}
	})
}
