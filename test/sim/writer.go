package sim

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// peerPatience is how long a caller waits for an answer.
const peerPatience = 9 * time.Second

// reachable is some server that answers, preferably s.
func (w *world) reachable(s *server) *server {
	if s != nil && s.alive {
		return s
	}
	return w.servers[w.life.n(servers)]
}

// write asks some server for a command. The answer comes once; an error leaves
// open what happened.
func (w *world) write(s *server, cmd *commandv1.Command, r reply) {
	s = w.reachable(s)
	cmd.Version = fsm.CommandVersion
	over := false
	end := func(res *commandv1.Result, err error) {
		if over {
			return
		}
		over = true
		if err == nil {
			w.canon.acked(cmd, res)
		}
		r(res, err)
	}
	w.calls++
	if s.alive {
		s.hear(5*time.Millisecond, func() {
			s.gateway.call(cmd, func(res *commandv1.Result, err error) {
				if w.quiet || !w.net.oneIn(50) {
					w.at(w.delay(5*time.Millisecond), func() { end(res, err) })
				}
			})
		})
	}
	w.at(peerPatience, func() { end(nil, errUnknown) })
}

// configWriter writes configuration, numbering its own commands.
type configWriter struct {
	w    *world
	name string
	next uint64
}

// act makes one write and repeats it until its outcome is known, or gives up.
func (c *configWriter) act() {
	w := c.w
	if w.quiet && w.now > w.Chaos+restTime/2 {
		return
	}
	number := c.next
	c.next++
	key := fmt.Sprintf("k%d", w.life.n(3))
	op := &commandv1.PutConfig{Key: key, Value: fmt.Appendf(nil, "%s#%d", c.name, number)}
	if s := w.servers[w.life.n(servers)]; s.alive && !w.life.oneIn(3) {
		row, _ := s.machine.Root().Config(key)
		op.IfModifyRevision = proto.Uint64(row.GetModifyRevision())
	}
	c.try(op, number, 1+w.life.n(5))
}

func (c *configWriter) try(op *commandv1.PutConfig, number uint64, tries int) {
	w := c.w
	cmd := &commandv1.Command{
		Identity:  "spiffe://sim/operator/" + c.name,
		RequestId: &commandv1.RequestId{Writer: c.name, Number: number, Lowest: number, PayloadDigest: op.GetValue()},
		Op:        &commandv1.Command_PutConfig{PutConfig: op},
	}
	w.write(nil, cmd, func(_ *commandv1.Result, err error) {
		again := c.act
		switch {
		case err != nil && tries > 1:
			again = func() { c.try(op, number, tries-1) }
		case err != nil:
			w.counts.NotAcked++
		case !w.quiet && w.life.oneIn(10):
			// The answer was lost on the last step, say.
			again = func() { c.try(op, number, 1) }
		}
		w.at(w.life.between(10*time.Millisecond, 700*time.Millisecond), again)
	})
}
