package rt

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// question is a message that wants an int.
type question struct {
	kind  string
	reply Reply[int]
}

func ask(ctx context.Context, ref Ref[question], kind string) (int, error) {
	return Ask(ctx, ref, func(r Reply[int]) question { return question{kind, r} })
}

func oracle(t *testing.T, s *System) Ref[question] {
	t.Helper()
	return mustSpawn(t, s, script[question]{handle: func(c *Ctx[question], q question) error {
		switch q.kind {
		case "answer":
			q.reply.Send(42)
		case "twice":
			q.reply.Send(1)
			q.reply.Send(2)
			q.reply.Fail(errBoom)
		case "refuse":
			q.reply.Fail(errBoom)
		case "refuse without a reason":
			q.reply.Fail(nil)
		case "late":
			c.Go("late", func(ctx context.Context) question {
				time.Sleep(time.Hour)
				q.reply.Send(1)
				return question{kind: "done"}
			})
		case "forget and stop":
			c.StopSelf()
		case "fail":
			return errBoom
		case "panic":
			panic(errBoom)
		case "ask inside":
			_, err := ask(c.Context(), c.Self(), "answer")
			q.reply.Fail(err)
		case "push inside":
			q.reply.Fail(c.Self().Push(c.Context(), question{}))
		case "ask from a worker":
			c.Go("asks", func(ctx context.Context) question {
				if v, err := ask(ctx, c.Self(), "answer"); err != nil {
					q.reply.Fail(err)
				} else {
					q.reply.Send(v)
				}
				return question{}
			})
		case "hold":
			<-c.Context().Done()
		}
		return nil
	}}.spec("oracle"))
}

func TestAsk(t *testing.T) {
	for _, tt := range []struct {
		kind string
		want int
		err  error
	}{
		{kind: "answer", want: 42},
		{kind: "twice", want: 1},
		{kind: "refuse", err: errBoom},
		{kind: "late", err: context.DeadlineExceeded},
		{kind: "forget and stop", err: ErrStopped},
		{kind: "fail", err: ErrFailed},
		{kind: "fail", err: errBoom},
		{kind: "panic", err: ErrFailed},
		{kind: "panic", err: errBoom},
		{kind: "ask inside", err: ErrInsideActor},
		{kind: "push inside", err: ErrInsideActor},
		{kind: "ask from a worker", want: 42},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *System) {
				ref := oracle(t, s)
				got, err := ask(soon(t), ref, tt.kind)
				wantErr(t, "ask", err, tt.err)
				wantEqual(t, "answer", got, tt.want)
				time.Sleep(2 * time.Hour) // a late reply harms nobody
				synctest.Wait()
				if tt.err == ErrStopped {
					_, err := ask(soon(t), ref, "answer")
					wantErr(t, "ask of the stopped", err, ErrStopped)
					return
				}
				got, err = ask(soon(t), ref, "answer")
				wantErr(t, "second ask", err, nil)
				wantEqual(t, "second answer", got, 42)
			})
		})
	}
}

func TestAskRefused(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref := oracle(t, s)
		if _, err := ask(soon(t), ref, "refuse without a reason"); err == nil {
			t.Error("Fail(nil) is no error")
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := ask(ended, ref, "answer")
		wantErr(t, "ask with an ended context", err, context.Canceled)

		mustOffer(t, ref, question{kind: "hold"})
		synctest.Wait()
		queued := make(chan error, 1)
		go func() {
			_, err := ask(context.Background(), ref, "answer")
			queued <- err
		}()
		synctest.Wait()
		for ref.Offer(question{}) == nil {
		}
		_, err = ask(soon(t), ref, "answer")
		wantErr(t, "ask of the full", err, ErrFull)
		ref.RequestStop()
		wantErr(t, "queued ask", <-queued, ErrStopped)
	})
}

// An Ask that is queued when its actor fails is answered by the next
// incarnation.
func TestAskSurvivesARestart(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref := oracle(t, s)
		mustOffer(t, ref, question{kind: "fail"})
		got, err := ask(soon(t), ref, "answer")
		wantErr(t, "ask", err, nil)
		wantEqual(t, "answer", got, 42)
	})
}

func TestZeroReplyIsHarmless(t *testing.T) {
	var r Reply[int]
	r.Send(1)
	r.Fail(errors.New("x"))
}
