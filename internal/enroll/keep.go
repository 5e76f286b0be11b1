package enroll

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

const (
	// lookEvery bounds the wait between two looks at the clock: a machine that
	// sleeps stops timers but not certificates.
	lookEvery = 30 * time.Second
	// renewTimeout bounds one attempt to renew.
	renewTimeout = 30 * time.Second
	retryMin     = time.Second
	retryMax     = 5 * time.Minute
	// spread is the part of the time that is left at RenewAt over which holders
	// spread their questions, so that a fleet that started at once does not ask
	// at once.
	spread = 10
)

// Keep renews the certificate of src in time, until ctx ends. A certificate of
// a role that is not renewed is left alone.
func Keep(ctx context.Context, src *pki.Source, sign pki.SignFunc, log *slog.Logger) {
	retry := retryMin
	share := rand.Float64() / spread
	var notBefore time.Time // of the next attempt, after one that failed
	for {
		wait := max(untilDue(src, share), notBefore.Sub(src.Now()))
		if wait <= 0 {
			pause := renewNow(ctx, src, sign, log, retry)
			if pause == 0 {
				retry = retryMin
				continue
			}
			retry = min(2*retry, retryMax)
			notBefore = src.Now().Add(pause)
			wait = pause
		}
		timer := time.NewTimer(min(wait, lookEvery))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// untilDue is how long the certificate still does; at most 0 when it is due.
func untilDue(src *pki.Source, share float64) time.Duration {
	b := src.Bundle()
	if !pki.Renewable(b.ID.Role) {
		return lookEvery
	}
	at := b.RenewAt()
	at = at.Add(time.Duration(share * float64(b.NotAfter.Sub(at))))
	return at.Sub(src.Now())
}

// renewNow renews and returns 0, or the wait before the next attempt.
func renewNow(ctx context.Context, src *pki.Source, sign pki.SignFunc, log *slog.Logger, retry time.Duration) time.Duration {
	rctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	before := src.Bundle()
	err := src.Renew(rctx, sign)
	if src.Bundle() != before {
		log.Info("certificate renewed", "identity", before.ID.String(), "until", src.Bundle().NotAfter.UTC().Format(time.RFC3339))
		if err != nil {
			log.Warn("the renewed certificate could not be stored", "err", err, "hint", errs.From(err).Hint)
		}
		if untilDue(src, 0) > 0 {
			return 0
		}
		// So short-lived that it is due again at once.
		return retry
	}
	if ctx.Err() == nil {
		log.Warn("the certificate could not be renewed", "identity", before.ID.String(),
			"until", before.NotAfter.UTC().Format(time.RFC3339), "err", err, "hint", errs.From(err).Hint)
	}
	return retry
}

// Refresh renews the certificate of src once if it is due. It fails only if the
// certificate cannot be used as it is: one that still is valid does for now,
// and one that cannot be renewed any more says so when it is used.
func Refresh(ctx context.Context, src *pki.Source, servers []string) error {
	b := src.Bundle()
	now := src.Now()
	ended := now.After(b.NotAfter)
	switch {
	case !pki.Renewable(b.ID.Role), now.Before(b.RenewAt()):
		return nil
	case ended && now.Sub(b.NotAfter) > pki.RefreshWindow(b.ID.Role):
		return b.ValidAt(now)
	}
	// Nobody waits long for what is not needed yet.
	patience := refreshTimeout
	if ended {
		patience = endedTimeout
	}
	rctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := src.Renew(rctx, Asker(src, func() []string { return servers }))
	switch {
	case src.Bundle() != b, !ended:
		return nil
	case refused(err):
		// A server that gives no certificates, or none to this one.
		return b.ValidAt(now)
	}
	return err
}

// endedTimeout bounds the renewal of a certificate that is needed now.
const endedTimeout = 10 * time.Second

// refreshTimeout bounds the renewal of a certificate that is still valid.
const refreshTimeout = 2 * time.Second
