package verbstest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"s3rdmafs/verbs"
)

// Run checks a provider. What a device cannot do by its own attributes is
// left out with a reason.
//
// Some of the tests run the test binary once more, for the one test that called
// Run; there Run is the peer.
func Run(t *testing.T, open Opener) {
	if os.Getenv(roleEnv) != "" {
		servePeer(t, open)
		return
	}
	base := t.Name()
	for _, c := range []struct {
		name string
		test func(*testing.T, Opener)
	}{
		{"Device", testDevice},
		{"Busy", testBusy},
		{"TwoDevices", testTwoDevices},
		{"TwoQPsOfOneDevice", testTwoQPs},
		{"QPToItself", testQPToItself},
		{"ScatterGather", testScatterGather},
		{"Unsignaled", testUnsignaled},
		{"WriteThenImm", testWriteThenImm},
		{"ZeroLength", testZeroLength},
		{"SharedCQ", testSharedCQ},
		{"Polling", testPolling},
		{"Channel", testChannel},
		{"QueueFull", testQueueFull},
		{"ManyQPs", testManyQPs},
		{"Rights", testRights},
		{"LocalRights", testLocalRights},
		{"StaleKey", testStaleKey},
		{"Deregister", testDeregister},
		{"Revoke", testRevoke},
		{"States", testStates},
		{"FlushOrder", testFlushOrder},
		{"Reset", testReset},
		{"Recycle", testRecycle},
		{"WrongPSN", testWrongPSN},
		{"WrongPeer", testWrongPeer},
		{"EarlyWrite", testEarlyWrite},
		{"ReceiverNotReady", testReceiverNotReady},
		{"ReceiverNeverReady", testReceiverNeverReady},
		{"PeerDestroyed", testPeerDestroyed},
		{"MTUMismatch", testMTUMismatch},
		{"TwoProcesses", func(t *testing.T, open Opener) { testTwoProcesses(t, open, base) }},
		{"ProcessDies", func(t *testing.T, open Opener) { testProcessDies(t, open, base) }},
		{"Pool", testPool},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}

func testDevice(t *testing.T, open Opener) {
	p, _, err := openPeer(open)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, p.Device)
	a := p.Device.Attr()
	if a.NumPorts < int(p.Port) || a.MaxQP < 1 || a.MaxQPWR < 16 || a.MaxSGE < 1 || a.MaxCQE < 256 || a.MaxMR < 1 || a.MaxMRSize < 1<<20 {
		t.Errorf("attributes %+v", a)
	}
	port := must(p.Device.Port(p.Port))(t)
	if port.State != verbs.PortActive || port.ActiveMTU < verbs.MTU256 || port.ActiveMTU > verbs.MTU4096 || port.MaxMsgSz < 1<<20 {
		t.Errorf("port %+v", port)
	}
	if p.GID.IsZero() {
		t.Errorf("no GID at index %d", p.GIDIndex)
	}
	if _, err := p.Device.Port(uint8(a.NumPorts) + 1); err == nil {
		t.Errorf("port %d of %d answered", a.NumPorts+1, a.NumPorts)
	}
}

// testBusy checks that nothing can be closed under the feet of what uses it.
func testBusy(t *testing.T, open Opener) {
	s := newSide(t, open, 4096)
	e := s.endpoint(t)
	e.modify(t, e.initAttr())
	for _, c := range []interface{ Close() error }{s.cq, s.ch, s.pd, s.Device} {
		if err := c.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close of %T in use: %v, want ErrBusy", c, err)
		}
	}
}

func testTwoDevices(t *testing.T, open Opener) {
	a, b := pair(t, open, 8<<20)
	for i, n := range []int{1, 7, 4096, 4097, 1 << 20, 8<<20 - 1} {
		transfer(t, a, b, n, uint64(100+10*i))
		transfer(t, b, a, n, uint64(105+10*i))
	}
	a.quiet(t)
	b.quiet(t)
}

func testTwoQPs(t *testing.T, open Opener) {
	s := newSide(t, open, 2<<20)
	a, b := s.endpoint(t), s.endpoint(t)
	connect(t, a, b)
	fill(s.mem.Bytes()[:1<<20], 1)
	to := b.address()
	to.Addr += 1 << 20
	b.recv(t, 1)
	a.send(t, a.write(to, 1<<20, 2, 3))
	s.next(t)
	s.next(t)
	wantBytes(t, s.mem.Bytes()[1<<20:], 1)
}

func testQPToItself(t *testing.T, open Opener) {
	a := newSide(t, open, 1<<20).endpoint(t)
	connect(t, a, a)
	transfer(t, a, a, 4096, 5)
}

func testScatterGather(t *testing.T, open Opener) {
	src, dst := newSide(t, open, 1<<20), newSide(t, open, 1<<20)
	if src.Device.Attr().MaxSGE < 3 {
		t.Skipf("the device takes %d SGEs", src.Device.Attr().MaxSGE)
	}
	a := src.endpointOf(t, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 3, MaxRecvSGE: 1}})
	b := dst.endpoint(t)
	connect(t, a, b)
	fill(src.mem.Bytes(), 7)
	other := src.reg(t, 512<<10, 4096, 0)
	b.recv(t, 1)
	wr := a.write(b.address(), 0, 2, 3)
	wr.SGEs = []verbs.SGE{
		{Addr: src.mr.Addr() + 3, Length: 100, LKey: src.mr.LKey()},
		{Addr: other.Addr() + 1, Length: 4000, LKey: other.LKey()},
		{Addr: src.mr.Addr(), Length: 7, LKey: src.mr.LKey()},
	}
	a.send(t, wr)
	wantRecv(t, b.next(t), b.qp.Num(), 1, 3, 4107)
	wantSent(t, a.next(t), a.qp.Num(), 2)
	m := src.mem.Bytes()
	want := append(append(append([]byte(nil), m[3:103]...), m[512<<10+1:512<<10+4001]...), m[:7]...)
	if got := dst.mem.Bytes()[:4107]; string(got) != string(want) {
		t.Error("gathered data differs")
	}
}

// testUnsignaled checks that unsignaled sends give no completion, and that a
// later signaled one frees their places in the queue.
func testUnsignaled(t *testing.T, open Opener) {
	a, b := pair(t, open, 1<<20)
	for round := range uint64(4) {
		for i := range uint64(16) {
			b.recv(t, i)
			wr := a.write(b.address(), 4096, round<<8|i, uint32(i))
			wr.Signaled = i == 15
			a.send(t, wr)
		}
		for i := range uint64(16) {
			wantRecv(t, b.next(t), b.qp.Num(), i, uint32(i), 4096)
		}
		wantSent(t, a.next(t), a.qp.Num(), round<<8|15)
		a.quiet(t)
	}
}

// testWriteThenImm streams as a server does: plain WRITEs, then an empty WRITE
// WITH IMM whose completion covers them all.
func testWriteThenImm(t *testing.T, open Opener) {
	const n, piece = 8, 256 << 10
	a, b := pair(t, open, n*piece)
	fill(a.mem.Bytes(), 9)
	b.recv(t, 1)
	to := b.address()
	for i := range uint64(n) {
		wr := a.write(to, 0, i, 0)
		wr.Opcode = verbs.OpWrite
		wr.RemoteAddr += i * piece
		wr.SGEs = []verbs.SGE{{Addr: a.mr.Addr() + i*piece, Length: piece, LKey: a.mr.LKey()}}
		a.send(t, wr)
	}
	a.send(t, a.write(to, 0, n, 77))
	wantRecv(t, b.next(t), b.qp.Num(), 1, 77, 0)
	wantBytes(t, b.mem.Bytes(), 9)
	for i := range uint64(n + 1) {
		wantSent(t, a.next(t), a.qp.Num(), i)
	}
	b.quiet(t)
}

func testZeroLength(t *testing.T, open Opener) {
	a, b := pair(t, open, 4096)
	for i := range uint64(3) {
		b.recv(t, i)
		a.send(t, a.write(b.address(), 0, 10+i, 0x01020304))
		wantRecv(t, b.next(t), b.qp.Num(), i, 0x01020304, 0)
		wantSent(t, a.next(t), a.qp.Num(), 10+i)
	}
}

// testSharedCQ tells the completions of several QPs apart by QP number.
func testSharedCQ(t *testing.T, open Opener) {
	x, y := newSide(t, open, 1<<20), newSide(t, open, 1<<20)
	type link struct{ a, b *endpoint }
	links := map[uint32]link{}
	for i := range 8 {
		l := link{x.endpoint(t), y.endpoint(t)}
		connect(t, l.a, l.b)
		links[l.b.qp.Num()] = l
		l.b.recv(t, uint64(i))
	}
	for qpn, l := range links {
		l.a.send(t, l.a.write(l.b.address(), 512, uint64(qpn), qpn))
	}
	for range len(links) {
		wc := y.next(t)
		if wc.Status != verbs.WCSuccess || wc.Imm != wc.QPN {
			t.Errorf("completion of QP %d with imm %d, %v", wc.QPN, wc.Imm, wc.Status)
		}
		delete(links, wc.QPN)
	}
	if len(links) > 0 {
		t.Errorf("%d QPs without a completion", len(links))
	}
}

func testPolling(t *testing.T, open Opener) {
	a, b := pair(t, open, 4096)
	b.recv(t, 1)
	b.quiet(t)
	a.send(t, a.write(b.address(), 100, 2, 3))
	var wc [4]verbs.WC
	eventually(t, "completion by polling", func() bool {
		n, err := b.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	wantRecv(t, wc[0], b.qp.Num(), 1, 3, 100)
}

func testChannel(t *testing.T, open Opener) {
	a, b := pair(t, open, 4096)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.ch.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with a cancelled context: %v", err)
	}
	for i := range uint64(3) {
		if err := b.cq.ReqNotify(); err != nil {
			t.Fatal(err)
		}
		b.recv(t, i)
		a.send(t, a.write(b.address(), 100, i, 3))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		got, err := b.ch.Wait(ctx)
		cancel()
		if err != nil || got != b.cq {
			t.Fatalf("event of %v, %v", got, err)
		}
		wantRecv(t, b.next(t), b.qp.Num(), i, 3, 100)
	}

	// A Wait that has begun ends with its context, too.
	ctx, cancel = context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	for {
		// An event may be left over from next.
		if _, err := b.ch.Wait(ctx); err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("wait until the deadline: %v", err)
			}
			break
		}
	}
}

// testQueueFull posts receives until there is no more room. A device may
// round the depth up.
func testQueueFull(t *testing.T, open Opener) {
	s := newSide(t, open, 4096)
	e := s.endpoint(t)
	e.modify(t, e.initAttr())
	for n := 0; n < 1<<16; n++ {
		err := e.qp.PostRecv(verbs.RecvWR{})
		if err == nil {
			continue
		}
		if !errors.Is(err, verbs.ErrQueueFull) || n < 16 {
			t.Fatalf("receive %d: %v", n, err)
		}
		return
	}
	t.Fatal("a queue of 16 took 65536 receives")
}

// testManyQPs has several QPs transfer at the same time.
func testManyQPs(t *testing.T, open Opener) {
	const qps, size, rounds = 6, 1 << 20, 10
	var wg sync.WaitGroup
	for i := range qps {
		a, b := pair(t, open, size)
		wg.Go(func() {
			for r := range rounds {
				n := (size/rounds)*(r+1) - i
				seed := uint64(i*1000 + r*10)
				fill(a.mem.Bytes()[:n], seed)
				if err := b.qp.PostRecv(verbs.RecvWR{ID: seed}); err != nil {
					t.Error(err)
					return
				}
				if err := a.qp.PostSend(a.write(b.address(), n, seed+1, uint32(seed))); err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				wb, err1 := b.await(ctx)
				wa, err2 := a.await(ctx)
				cancel()
				if err := errors.Join(err1, err2); err != nil || wa.Status != verbs.WCSuccess || wb.Status != verbs.WCSuccess {
					t.Errorf("QP %d, round %d: %v, %v, %v", i, r, wa.Status, wb.Status, err)
					return
				}
				want := make([]byte, n)
				fill(want, seed)
				if string(want) != string(b.mem.Bytes()[:n]) {
					t.Errorf("QP %d, round %d: data differs", i, r)
				}
			}
		})
	}
	wg.Wait()
}
