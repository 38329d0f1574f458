package rc_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// Good and bad clients together, on a wire that loses, delays and repeats packets:
// each sees only its own bytes, and in the end nothing is held.
func TestServerManyClients(t *testing.T) {
	faults := &shm.Faults{Seed: 3, Drop: 0.02, Late: 0.1, LateBy: 5 * time.Millisecond, Piece: 4096}
	e := startServer(t, serverConfig{server: faults, edit: func(o *rc.ServerOptions) {
		o.PrepareTimeout = 10 * time.Second
		o.Linger = 2 * time.Second
	}})
	t.Run("clients", func(t *testing.T) {
		for worker := range 6 {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				own := *e
				own.t = t
				r := rand.New(rand.NewPCG(uint64(worker), 7))
				for range 8 {
					own.randomSession(r, fmt.Sprintf("/b/worker-%d", worker))
				}
			})
		}
	})
	e.gone()
}

func (e *serverEnv) randomSession(r *rand.Rand, target string) {
	e.t.Helper()
	data := randomBytes(r.Uint64(), 1+r.IntN(200_000))
	size := int64(len(data))
	switch r.IntN(5) {
	case 0:
		e.put(target, data)
		if got, _ := e.open(rc.OpGet, target, size).finishGet(); !bytes.Equal(got, data) {
			e.t.Error("got something else")
		}
	case 1:
		s := e.openKept(256 << 10)
		for range 3 {
			s.nextPut(target, data)
			if got := s.nextGet(target, size); !bytes.Equal(got, data) {
				e.t.Error("kept session: got something else")
			}
		}
		s.stop()
		e.expect("CANCEL", e.must(token.PathCancel, s.ready().Header()), 200, "")
	case 2: // gives up with its write on the way
		s := e.open(rc.OpPut, target, size)
		s.write(nil)
		e.expect("CANCEL", e.must(token.PathCancel, s.ready().Header()), 200, "")
	case 3:
		s := e.open(rc.OpPut, target, size)
		s.write(func(wr *verbs.SendWR) { wr.Imm ^= 1 })
		e.expect("wrong immediate", e.must(token.PathReady, s.ready().Header()), 502, "RdmaTransferFailed")
	case 4: // dies during READY
		s := e.open(rc.OpPut, target, size)
		ready := e.start(token.PathReady, s.ready().Header())
		s.claimed()
		s.stop()
		e.expect("CANCEL", e.must(token.PathCancel, s.ready().Header()), 200, "")
		e.expect("FINAL of a dead client", ready.wait(), 408, "RequestTimeout")
	}
}
