package shm_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
	"s3rdmafs/verbs/verbstest"
)

// TestSuiteUnderFaults runs the suite on devices that stay within the rules but
// behave as badly as these allow.
func TestSuiteUnderFaults(t *testing.T) {
	var seed atomic.Uint64
	for name, faults := range map[string]func() *shm.Faults{
		"pieces": func() *shm.Faults { return &shm.Faults{Seed: seed.Add(1), Piece: 10007} },
		"delays": func() *shm.Faults { return &shm.Faults{Seed: seed.Add(1), Delay: 3 * time.Millisecond} },
		"losses": func() *shm.Faults { return &shm.Faults{Seed: seed.Add(1), Drop: 0.03} },
		"late": func() *shm.Faults {
			return &shm.Faults{Seed: seed.Add(1), Late: 0.5, LateBy: 5 * time.Millisecond, Piece: 65536}
		},
	} {
		t.Run(name, func(t *testing.T) { verbstest.Run(t, opener(faults)) })
	}
}

// TestLossyWire transfers over pools on a wire that loses, repeats, delays and
// cuts, with workers that give up in the middle now and then. What is announced as
// good must be good, and what was given up must not be touched.
func TestLossyWire(t *testing.T) {
	const workers, rounds, size = 6, 40, 48 << 10
	faults := &shm.Faults{Seed: 42, Drop: 0.05, Late: 0.2, LateBy: 4 * time.Millisecond, Delay: time.Millisecond, Piece: 3001}
	x, y := newEnd(t, workers*size, faults), newEnd(t, workers*size, faults)
	var good, failed atomic.Int32
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			src, dst := x.mem.Bytes()[w*size:][:size], y.mem.Bytes()[w*size:][:size]
			for r := range rounds {
				a, b := x.get(t), y.get(t)
				attr := verbs.ConnectAttr{MTU: verbs.MTU4096, Timeout: 11}
				attr.DestQPN, attr.RQPSN, attr.DGID = b.QPN(), b.PSN(), y.gid
				err := a.Connect(attr)
				attr.DestQPN, attr.RQPSN, attr.DGID = a.QPN(), a.PSN(), x.gid
				if err2 := b.Connect(attr); err != nil || err2 != nil {
					t.Errorf("connect: %v, %v", err, err2)
					return
				}
				value := byte(1 + r)
				for i := range src {
					src[i] = value
				}
				if err := b.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
					t.Error(err)
					return
				}
				n := 1 + rng.IntN(size)
				off := uint64(w * size)
				if err := a.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.OpWriteWithImm, Signaled: true, Imm: uint32(r),
					RemoteAddr: y.mr.Addr() + off, RKey: y.mr.RKey(),
					SGEs: []verbs.SGE{{Addr: x.mr.Addr() + off, Length: uint32(n), LKey: x.mr.LKey()}}}); err != nil {
					t.Error(err)
					return
				}
				// Give up after a random time, or never.
				impatience := make(<-chan time.Time)
				if rng.IntN(2) == 0 {
					impatience = time.After(time.Duration(rng.IntN(3000)) * time.Microsecond)
				}
				announced := false
				select {
				case wc := <-b.Completions():
					announced = wc.Status == verbs.WCSuccess
					if announced && (wc.Imm != uint32(r) || wc.ByteLen != uint32(n)) {
						t.Errorf("completion %+v, want imm %d, %d bytes", wc, r, n)
					}
				case <-impatience:
				}
				x.release(t, a)
				for i := range src {
					src[i] = 0xee // the source is ours again
				}
				y.release(t, b)
				if announced {
					good.Add(1)
					for i := range n {
						if dst[i] != value {
							t.Errorf("worker %d, round %d: byte %d of %d is %#x", w, r, i, n, dst[i])
							break
						}
					}
				} else {
					failed.Add(1)
					// The last word: nothing may have been announced in between.
					select {
					case wc := <-b.Completions():
						if wc.Status == verbs.WCSuccess {
							for i := range n {
								if dst[i] != value {
									t.Errorf("worker %d, round %d: torn data announced", w, r)
									break
								}
							}
						}
					default:
						t.Errorf("worker %d, round %d: the receive vanished", w, r)
					}
				}
				for i := range dst {
					dst[i] = 0xdd // the target is ours again
				}
				if err := untouched(dst); err >= 0 {
					t.Errorf("worker %d, round %d: byte %d was touched", w, r, err)
				}
			}
		})
	}
	wg.Wait()
	if good.Load() == 0 || failed.Load() == 0 {
		t.Errorf("%d transfers good, %d given up", good.Load(), failed.Load())
	}
}

// untouched looks a few times whether memory keeps its value.
func untouched(p []byte) int {
	for range 3 {
		for i, v := range p {
			if v != 0xdd {
				return i
			}
		}
	}
	return -1
}

// TestInjectedFailure: a WR can be made to fail with any status.
func TestInjectedFailure(t *testing.T) {
	for _, status := range []verbs.WCStatus{verbs.WCRetryExcErr, verbs.WCRemOpErr, verbs.WCGeneralErr} {
		t.Run(status.String(), func(t *testing.T) {
			x := newEnd(t, 4096, &shm.Faults{Fail: 1, FailStatus: status})
			y := newEnd(t, 4096, nil)
			a, b := x.get(t), y.get(t)
			if err := a.Connect(verbs.ConnectAttr{MTU: verbs.MTU4096, DestQPN: b.QPN(), RQPSN: b.PSN(), DGID: y.gid}); err != nil {
				t.Fatal(err)
			}
			for i := range uint64(2) {
				if err := a.PostSend(verbs.SendWR{ID: i, Opcode: verbs.OpWriteWithImm}); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range []verbs.WCStatus{status, verbs.WCWRFlushErr} {
				if wc := <-a.Completions(); wc.ID != uint64(i) || wc.Status != want {
					t.Errorf("completion of %d: %v, want %v", wc.ID, wc.Status, want)
				}
			}
			x.release(t, a)
			y.release(t, b)
		})
	}
}

// end is a device with a pool and a region.
type end struct {
	pool *verbs.Pool
	gid  verbs.GID
	mem  *verbs.Memory
	mr   verbs.MR
}

func newEnd(t *testing.T, size int, f *shm.Faults) *end {
	t.Helper()
	dev, err := shm.Open(shm.Options{Faults: f, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	gids, err := dev.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	e := &end{gid: gids[0].GID}
	if e.mem, err = verbs.NewMemory("end", size); err != nil {
		t.Fatal(err)
	}
	if e.mr, err = pd.RegMR(e.mem, 0, size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		t.Fatal(err)
	}
	if e.pool, err = verbs.NewPool(dev, verbs.PoolOptions{PD: pd, Access: verbs.AccessRemoteWrite, MaxQPs: 8}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{e.pool, e.mr, e.mem, pd, dev} {
			if err := c.Close(); err != nil {
				t.Errorf("close %T: %v", c, err)
			}
		}
	})
	return e
}

func (e *end) get(t *testing.T) *verbs.Conn {
	t.Helper()
	c, err := e.pool.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (e *end) release(t *testing.T, c *verbs.Conn) {
	t.Helper()
	if err := c.Release(context.Background()); err != nil {
		t.Errorf("release: %v", err)
	}
}
