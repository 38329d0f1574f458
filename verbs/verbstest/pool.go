package verbstest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"s3rdmafs/verbs"
)

// poolSide is a side with a Pool on it.
type poolSide struct {
	*side
	pool *verbs.Pool
}

func newPool(t *testing.T, open Opener, size int, o verbs.PoolOptions) *poolSide {
	t.Helper()
	s := newSide(t, open, size)
	o.PD, o.Port, o.Access = s.pd, s.Port, verbs.AccessRemoteWrite
	o.Logger = slog.New(slog.DiscardHandler)
	p := must(verbs.NewPool(s.Device, o))(t)
	t.Cleanup(func() { mustClose(t, p) })
	return &poolSide{side: s, pool: p}
}

func (s *poolSide) get(t testing.TB) *verbs.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return must(s.pool.Get(ctx))(t)
}

func (s *poolSide) connect(t testing.TB, c *verbs.Conn, peer *side, to *verbs.Conn, change func(*verbs.ConnectAttr)) {
	t.Helper()
	a := verbs.ConnectAttr{DestQPN: to.QPN(), RQPSN: to.PSN(), DGID: peer.GID, DLID: peer.lid, SGIDIndex: s.GIDIndex, MTU: s.MTU}
	if change != nil {
		change(&a)
	}
	if err := c.Connect(a); err != nil {
		t.Fatal(err)
	}
}

// pairConns gets a QP of each and connects them.
func pairConns(t testing.TB, x, y *poolSide) (a, b *verbs.Conn) {
	t.Helper()
	a, b = x.get(t), y.get(t)
	x.connect(t, a, y.side, b, nil)
	y.connect(t, b, x.side, a, nil)
	return a, b
}

func release(t testing.TB, conns ...*verbs.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, c := range conns {
		if err := c.Release(ctx); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}

func takeWC(t testing.TB, c *verbs.Conn) verbs.WC {
	t.Helper()
	select {
	case wc := <-c.Completions():
		return wc
	case <-time.After(patience):
		t.Fatal("no completion")
		return verbs.WC{}
	}
}

func noWC(t testing.TB, c *verbs.Conn) {
	t.Helper()
	select {
	case wc := <-c.Completions():
		t.Fatalf("unexpected completion of %d: %v", wc.ID, wc.Status)
	default:
	}
}

// writeTo is a signaled WRITE WITH IMM of n bytes of s to the same place of peer.
func (s *side) writeTo(peer *side, off, n int, id uint64, imm uint32) verbs.SendWR {
	wr := verbs.SendWR{ID: id, Opcode: verbs.OpWriteWithImm, Imm: imm, Signaled: true,
		RemoteAddr: peer.mr.Addr() + uint64(off), RKey: peer.mr.RKey()}
	if n > 0 {
		wr.SGEs = []verbs.SGE{verbs.Segment{Buf: s.mem.Bytes()[off : off+n], MR: s.mr, Off: off}.SGE()}
	}
	return wr
}

func testPool(t *testing.T, open Opener) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Opener)
	}{
		{"Recycles", testPoolRecycles},
		{"Blocks", testPoolBlocks},
		{"DrainsOutstanding", testPoolDrains},
		{"DrainsUnsignaled", testPoolDrainsUnsignaled},
		{"DrainUnderFire", testPoolDrainUnderFire},
		{"ReleaseCancelled", testPoolReleaseCancelled},
		{"Refuses", testPoolRefuses},
		{"NoAccess", testPoolNoAccess},
		{"Concurrent", testPoolConcurrent},
		{"Close", testPoolClose},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}

// testPoolRecycles uses the same QPs again and again: same number, other PSN,
// nothing left over.
func testPoolRecycles(t *testing.T, open Opener) {
	const size = 64 << 10
	x, y := newPool(t, open, size, verbs.PoolOptions{MaxQPs: 1}), newPool(t, open, size, verbs.PoolOptions{MaxQPs: 1})
	seen := map[[2]uint32]bool{}
	for i := range uint64(50) {
		a, b := pairConns(t, x, y)
		if key := [2]uint32{a.QPN(), a.PSN()}; seen[key] || a.PSN() == 0 || a.PSN() > 0xffffff {
			t.Fatalf("QP %d with PSN %d", a.QPN(), a.PSN())
		} else {
			seen[key] = true
		}
		fill(x.mem.Bytes(), i)
		if err := b.PostRecv(verbs.RecvWR{ID: i}); err != nil {
			t.Fatal(err)
		}
		if err := b.PostRecv(verbs.RecvWR{ID: i + 1}); err != nil {
			t.Fatal(err)
		}
		if err := a.PostSend(x.writeTo(y.side, 0, size, 1000+i, uint32(i))); err != nil {
			t.Fatal(err)
		}
		wantRecv(t, takeWC(t, b), b.QPN(), i, uint32(i), size)
		wantSent(t, takeWC(t, a), a.QPN(), 1000+i)
		wantBytes(t, y.mem.Bytes(), i)
		release(t, a, b)
		if wc := takeWC(t, b); wc.ID != i+1 || wc.Status != verbs.WCWRFlushErr {
			t.Fatalf("second receive: %d, %v", wc.ID, wc.Status)
		}
		noWC(t, a)
		noWC(t, b)
	}
	s := y.pool.Stats()
	if s.Created != 1 || s.Recycled != 49 || s.Destroyed != 0 || s.Open != 1 || s.InUse != 0 || s.Stray != 0 ||
		s.CompletionErrors[verbs.WCWRFlushErr] != 50 {
		t.Errorf("stats %+v", s)
	}
}

func testPoolBlocks(t *testing.T, open Opener) {
	x := newPool(t, open, 4096, verbs.PoolOptions{MaxQPs: 2})
	a, b := x.get(t), x.get(t)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := x.pool.Get(ctx)
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("third Get: %v", err)
	}
	conns := make(chan *verbs.Conn, 1)
	go func() {
		c, err := x.pool.Get(context.Background())
		if err != nil {
			t.Error(err)
		}
		conns <- c
	}()
	release(t, a)
	select {
	case c := <-conns:
		release(t, c)
	case <-time.After(patience):
		t.Error("Get blocked on")
	}
	release(t, b)
}

// testPoolDrains drains a QP whose sends go nowhere.
func testPoolDrains(t *testing.T, open Opener) {
	o := verbs.PoolOptions{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	x, y := newPool(t, open, 4096, o), newPool(t, open, 4096, o)
	a, b := x.get(t), y.get(t)
	x.connect(t, a, y.side, b, nil)
	for i := range uint64(4) {
		if err := a.PostRecv(verbs.RecvWR{ID: 10 + i}); err != nil {
			t.Fatal(err)
		}
		wr := x.writeTo(y.side, 0, 4096, 20+i, 0)
		wr.Signaled = i == 1
		if err := a.PostSend(wr); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.PostSend(verbs.SendWR{}); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("fifth send: %v", err)
	}
	if err := a.PostRecv(verbs.RecvWR{}); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("fifth receive: %v", err)
	}
	ctx := context.Background()
	for range 2 {
		if err := a.Drain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.PostSend(verbs.SendWR{}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("send after the drain: %v", err)
	}
	sends, recvs := uint64(20), uint64(10)
	for range 8 {
		// Drain returned: all of them are here.
		select {
		case wc := <-a.Completions():
			switch {
			case wc.Status != verbs.WCWRFlushErr:
				t.Errorf("completion %v", wc.Status)
			case wc.ID == sends:
				sends++
			case wc.ID == recvs:
				recvs++
			default:
				t.Errorf("completion of %d", wc.ID)
			}
		default:
			t.Fatal("a completion is missing")
		}
	}
	noWC(t, a)
	release(t, a, b, a)
	if s := x.pool.Stats(); s.Destroyed != 0 || s.InUse != 0 {
		t.Errorf("stats %+v", s)
	}
}

// testPoolDrainsUnsignaled drains a QP whose unsignaled sends were good long
// ago, which nothing tells.
func testPoolDrainsUnsignaled(t *testing.T, open Opener) {
	x, y := newPool(t, open, 4096, verbs.PoolOptions{}), newPool(t, open, 4096, verbs.PoolOptions{})
	a, b := pairConns(t, x, y)
	for i := range uint64(2) {
		if err := b.PostRecv(verbs.RecvWR{ID: i}); err != nil {
			t.Fatal(err)
		}
		wr := x.writeTo(y.side, 0, 100, i, 0)
		wr.Signaled = false
		if err := a.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		wantRecv(t, takeWC(t, b), b.QPN(), i, 0, 100)
	}
	release(t, a, b)
	if s := x.pool.Stats(); s.Destroyed != 0 || s.Stray != 0 {
		t.Errorf("stats %+v", s)
	}
}

// testPoolDrainUnderFire drains a QP while its peer writes without pause. What
// Drain promises is that the memory is then the owner's.
func testPoolDrainUnderFire(t *testing.T, open Opener) {
	const size = 2 << 20
	o := verbs.PoolOptions{Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
	x, y := newPool(t, open, size, o), newPool(t, open, size, o)
	for range 10 {
		a, b := x.get(t), y.get(t)
		x.connect(t, a, y.side, b, func(c *verbs.ConnectAttr) { c.Timeout, c.RetryCnt = 12, 3 })
		y.connect(t, b, x.side, a, nil)
		fill(x.mem.Bytes(), 1)
		if err := b.PostRecv(verbs.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				wr := x.writeTo(y.side, 0, size, i, 0)
				wr.Opcode = verbs.OpWrite
				if err := a.PostSend(wr); err != nil {
					t.Error(err)
					return
				}
				if wc := <-a.Completions(); wc.Status != verbs.WCSuccess {
					return
				}
			}
		})
		last := y.mem.Bytes()[size-1:]
		eventually(t, "the first WRITE landed", func() bool { return last[0] == x.mem.Bytes()[size-1] })
		release(t, b)
		clear(y.mem.Bytes())
		if wc := takeWC(t, b); wc.Status != verbs.WCWRFlushErr {
			t.Errorf("receive: %v", wc.Status)
		}
		wg.Wait()
		if i := firstNonZero(y.mem.Bytes()); i >= 0 {
			t.Fatalf("byte %d was written after Release", i)
		}
		release(t, a)
	}
}

// testPoolReleaseCancelled gives up with a context that has ended.
func testPoolReleaseCancelled(t *testing.T, open Opener) {
	x, y := newPool(t, open, 4096, verbs.PoolOptions{}), newPool(t, open, 4096, verbs.PoolOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 5 {
		a, b := pairConns(t, x, y)
		if err := a.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*verbs.Conn{a, b} {
			if err := c.Release(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if wc := takeWC(t, a); wc.ID != 1 || wc.Status != verbs.WCWRFlushErr {
			t.Errorf("receive %d: %v", wc.ID, wc.Status)
		}
	}
	if s := x.pool.Stats(); s.InUse != 0 {
		t.Errorf("stats %+v", s)
	}
}

// testPoolRefuses checks Conns whose connection fails.
func testPoolRefuses(t *testing.T, open Opener) {
	x, y := newPool(t, open, 4096, verbs.PoolOptions{}), newPool(t, open, 4096, verbs.PoolOptions{})
	a, b := x.get(t), y.get(t)
	if err := a.Connect(verbs.ConnectAttr{DestQPN: b.QPN(), DGID: y.GID, MTU: 99, SGIDIndex: x.GIDIndex}); err == nil {
		t.Error("connected with MTU 99")
	}
	release(t, a, b)

	a, b = pairConns(t, x, y)
	if err := b.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
		t.Fatal(err)
	}
	wr := x.writeTo(y.side, 0, 4096, 2, 3)
	wr.RKey ^= 0x100
	if err := a.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	if wc := takeWC(t, a); wc.Status != verbs.WCRemAccessErr || wc.ID != 2 {
		t.Errorf("send %d: %v", wc.ID, wc.Status)
	}
	if wc := takeWC(t, b); wc.Status == verbs.WCSuccess || wc.ID != 1 {
		t.Errorf("receive %d: %v", wc.ID, wc.Status)
	}
	release(t, a, b)

	a, b = pairConns(t, x, y)
	if err := b.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if err := a.PostSend(x.writeTo(y.side, 0, 4096, 2, 3)); err != nil {
		t.Fatal(err)
	}
	wantRecv(t, takeWC(t, b), b.QPN(), 1, 3, 4096)
	release(t, a, b)
	if s := x.pool.Stats(); s.CompletionErrors[verbs.WCRemAccessErr] != 1 {
		t.Errorf("stats %+v", s)
	}
}

// testPoolNoAccess: a QP whose peer may do nothing sends all the same, and has the
// pool's rights again in its next life.
func testPoolNoAccess(t *testing.T, open Opener) {
	x, y := newPool(t, open, 4096, verbs.PoolOptions{}), newPool(t, open, 4096, verbs.PoolOptions{MaxQPs: 1})
	noAccess := func(a *verbs.ConnectAttr) { a.NoAccess = true }
	a, b := x.get(t), y.get(t)
	x.connect(t, a, y.side, b, nil)
	y.connect(t, b, x.side, a, noAccess)
	for _, c := range []*verbs.Conn{a, b} {
		if err := c.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.PostSend(y.writeTo(x.side, 0, 4096, 2, 3)); err != nil {
		t.Fatal(err)
	}
	wantRecv(t, takeWC(t, a), a.QPN(), 1, 3, 4096)
	if wc := takeWC(t, b); wc.Status != verbs.WCSuccess || wc.ID != 2 {
		t.Errorf("send %d: %v", wc.ID, wc.Status)
	}
	if err := a.PostSend(x.writeTo(y.side, 0, 4096, 4, 5)); err != nil {
		t.Fatal(err)
	}
	if wc := takeWC(t, a); wc.Status != verbs.WCRemInvReqErr && wc.Status != verbs.WCRemAccessErr {
		t.Errorf("a write to a QP without rights: %v", wc.Status)
	}
	release(t, a, b)

	a, b = pairConns(t, x, y)
	if err := b.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if err := a.PostSend(x.writeTo(y.side, 0, 4096, 2, 3)); err != nil {
		t.Fatal(err)
	}
	wantRecv(t, takeWC(t, b), b.QPN(), 1, 3, 4096)
	release(t, a, b)
}

// testPoolConcurrent has more workers than QPs, over few CQs.
func testPoolConcurrent(t *testing.T, open Opener) {
	const workers, rounds, size = 12, 25, 32 << 10
	o := verbs.PoolOptions{MaxQPs: 5, CQs: 2, Spin: 20 * time.Microsecond}
	x, y := newPool(t, open, workers*size, o), newPool(t, open, workers*size, o)
	// A worker holds one QP of each pool; getting them one by one from two pools
	// with the same limit cannot deadlock, as all take x first.
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range uint64(rounds) {
				a, b := pairConns(t, x, y)
				off := w * size
				seed := uint64(w)*1000 + r
				fill(x.mem.Bytes()[off:off+size], seed)
				err := errors.Join(b.PostRecv(verbs.RecvWR{ID: seed}), a.PostSend(x.writeTo(y.side, off, size, seed, uint32(seed))))
				if err != nil {
					t.Error(err)
					return
				}
				wb, wa := takeWC(t, b), takeWC(t, a)
				if wb.Status != verbs.WCSuccess || wa.Status != verbs.WCSuccess || wb.ID != seed || wa.ID != seed || wb.Imm != uint32(seed) {
					t.Errorf("worker %d: %+v, %+v", w, wa, wb)
				}
				want := make([]byte, size)
				fill(want, seed)
				if string(want) != string(y.mem.Bytes()[off:off+size]) {
					t.Errorf("worker %d: data differs", w)
				}
				release(t, a, b)
			}
		})
	}
	wg.Wait()
	for _, p := range []*poolSide{x, y} {
		if s := p.pool.Stats(); s.InUse != 0 || s.Created > 5 || s.Created+s.Recycled != workers*rounds || s.Stray != 0 {
			t.Errorf("stats %+v", s)
		}
	}
}

func testPoolClose(t *testing.T, open Opener) {
	x := newPool(t, open, 4096, verbs.PoolOptions{MaxQPs: 1})
	a := x.get(t)
	blocked := make(chan error, 1)
	go func() {
		_, err := x.pool.Get(context.Background())
		blocked <- err
	}()
	if err := x.pool.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("close with a QP out: %v", err)
	}
	if err := <-blocked; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("blocked Get: %v", err)
	}
	release(t, a)
	if err := x.pool.Close(); err != nil {
		t.Error(err)
	}
	if _, err := x.pool.Get(context.Background()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Get after Close: %v", err)
	}
	if s := x.pool.Stats(); s.Open != 0 || s.Destroyed != 1 {
		t.Errorf("stats %+v", s)
	}
}
