package main

import (
	"context"
	"sync"
	"time"

	"trivet/client"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// eachServer does something with every server of the context at once, each
// reached by itself alone. do is called from several goroutines, once per
// server, with the error of the connection if there is none. perServer bounds
// the work with one server; 0: the time of ctx.
func eachServer(ctx context.Context, c client.Context, perServer time.Duration, do func(ctx context.Context, i int, api operatorsvc.OperatorClient, err error)) error {
	if err := c.Validate(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i, addr := range c.Servers {
		wg.Go(func() {
			ctx := ctx
			if perServer > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, perServer)
				defer cancel()
			}
			one := c
			one.Servers = []string{addr}
			pool, err := client.Dial(ctx, one, client.Options{Patience: -1, Consistency: client.Stale})
			if err != nil {
				do(ctx, i, nil, err)
				return
			}
			defer pool.Close()
			do(ctx, i, operatorsvc.NewOperatorClient(pool), nil)
		})
	}
	wg.Wait()
	return nil
}
