package verbstest

import (
	"math/rand/v2"
	"testing"

	"s3rdmafs/verbs"
)

// testStates checks that a transition with a missing or superfluous attribute,
// or between states that have no way to each other, fails and changes nothing.
func testStates(t *testing.T, open Opener) {
	s := newSide(t, open, 4096)
	peer := s.endpoint(t)
	peer.modify(t, peer.initAttr())
	prepare := map[verbs.QPState]func(*endpoint){
		verbs.StateReset: func(*endpoint) {},
		verbs.StateInit:  func(e *endpoint) { e.modify(t, e.initAttr()) },
		verbs.StateRTR: func(e *endpoint) {
			e.modify(t, e.initAttr())
			e.modify(t, e.rtrAttr(peer.address()))
		},
		verbs.StateRTS: func(e *endpoint) {
			e.modify(t, e.initAttr())
			e.modify(t, e.rtrAttr(peer.address()))
			e.modify(t, e.rtsAttr())
		},
		verbs.StateErr: func(e *endpoint) {
			e.modify(t, e.initAttr())
			e.to(t, verbs.StateErr)
		},
	}
	refuse := func(name string, from verbs.QPState, a func(*endpoint) verbs.QPAttr, mask verbs.QPAttrMask) {
		t.Run(name, func(t *testing.T) {
			e := s.endpoint(t)
			prepare[from](e)
			if err := e.qp.Modify(a(e), mask); err == nil {
				t.Error("accepted")
			}
			if got, err := e.qp.State(); err != nil || got != from {
				t.Errorf("state %v, %v", got, err)
			}
		})
	}
	ini := func(e *endpoint) verbs.QPAttr { return e.initAttr() }
	rtr := func(e *endpoint) verbs.QPAttr { return e.rtrAttr(peer.address()) }
	rts := func(e *endpoint) verbs.QPAttr { return e.rtsAttr() }
	for mask, name := range map[verbs.QPAttrMask]string{verbs.AttrPKeyIndex: "P_Key index", verbs.AttrPort: "port", verbs.AttrAccessFlags: "access"} {
		refuse("INIT without "+name, verbs.StateReset, ini, verbs.MaskInit&^mask)
	}
	for mask, name := range map[verbs.QPAttrMask]string{verbs.AttrAV: "address", verbs.AttrPathMTU: "MTU", verbs.AttrDestQPN: "QP number",
		verbs.AttrRQPSN: "PSN", verbs.AttrMaxDestRdAtomic: "max reads", verbs.AttrMinRNRTimer: "RNR timer"} {
		refuse("RTR without "+name, verbs.StateInit, rtr, verbs.MaskRTR&^mask)
	}
	for mask, name := range map[verbs.QPAttrMask]string{verbs.AttrTimeout: "timeout", verbs.AttrRetryCnt: "retries",
		verbs.AttrRNRRetry: "RNR retries", verbs.AttrSQPSN: "PSN", verbs.AttrMaxQPRdAtomic: "max reads"} {
		refuse("RTS without "+name, verbs.StateRTR, rts, verbs.MaskRTS&^mask)
	}
	refuse("INIT with MTU", verbs.StateReset, ini, verbs.MaskInit|verbs.AttrPathMTU)
	refuse("RTR with timeout", verbs.StateInit, rtr, verbs.MaskRTR|verbs.AttrTimeout)
	refuse("RTS with address", verbs.StateRTR, rts, verbs.MaskRTS|verbs.AttrAV)
	refuse("RESET to RTR", verbs.StateReset, rtr, verbs.MaskRTR)
	refuse("RESET to RTS", verbs.StateReset, rts, verbs.MaskRTS)
	refuse("INIT to RTS", verbs.StateInit, rts, verbs.MaskRTS)
	refuse("RTR to INIT", verbs.StateRTR, ini, verbs.MaskInit)
	refuse("RTS to INIT", verbs.StateRTS, ini, verbs.MaskInit)
	refuse("RTS to RTR", verbs.StateRTS, rtr, verbs.MaskRTR)
	refuse("ERR to INIT", verbs.StateErr, ini, verbs.MaskInit)
	refuse("ERR to RTS", verbs.StateErr, rts, verbs.MaskRTS)
	refuse("wrong port", verbs.StateReset, func(e *endpoint) verbs.QPAttr {
		a := e.initAttr()
		a.Port = uint8(e.Device.Attr().NumPorts) + 1
		return a
	}, verbs.MaskInit)

	for from, prep := range prepare {
		t.Run(from.String()+" to RESET", func(t *testing.T) {
			e := s.endpoint(t)
			prep(e)
			e.to(t, verbs.StateReset)
			e.wantState(t, verbs.StateReset)
		})
		if from == verbs.StateReset {
			continue
		}
		t.Run(from.String()+" to ERR", func(t *testing.T) {
			e := s.endpoint(t)
			prep(e)
			e.to(t, verbs.StateErr)
			e.wantState(t, verbs.StateErr)
		})
	}
}

// testFlushOrder checks that going to ERR gives back every work request, in the
// order of each queue, and that later posts come back as well.
func testFlushOrder(t *testing.T, open Opener) {
	const n = 8
	a, b := newSide(t, open, 4096).endpoint(t), newSide(t, open, 4096).endpoint(t)
	b.modify(t, b.initAttr()) // takes no packets
	a.modify(t, a.initAttr())
	a.modify(t, a.rtrAttr(b.address()))
	a.modify(t, a.rtsAttr())
	for i := range uint64(n) {
		a.recv(t, 100+i)
		wr := a.write(b.address(), 512, 200+i, 0)
		wr.Signaled = i%2 == 0 // flushed ones always complete
		a.send(t, wr)
	}
	a.to(t, verbs.StateErr)
	a.recv(t, 100+n)
	a.send(t, a.write(b.address(), 512, 200+n, 0))
	next := map[bool]uint64{true: 200, false: 100}
	for range 2 * (n + 1) {
		wc := a.wantStatus(t, verbs.WCWRFlushErr)
		if wc.QPN != a.qp.Num() {
			t.Errorf("completion of QP %d", wc.QPN)
		}
		send := wc.ID >= 200
		if wc.ID != next[send] {
			t.Errorf("completion of %d, want %d", wc.ID, next[send])
		}
		next[send]++
	}
	a.quiet(t)
}

// testReset checks that RESET forgets the work requests.
func testReset(t *testing.T, open Opener) {
	a, b := newSide(t, open, 4096).endpoint(t), newSide(t, open, 4096).endpoint(t)
	b.modify(t, b.initAttr())
	a.modify(t, a.initAttr())
	a.recv(t, 1)
	a.modify(t, a.rtrAttr(b.address()))
	a.modify(t, a.rtsAttr())
	a.send(t, a.write(b.address(), 512, 2, 0))
	a.to(t, verbs.StateReset)
	a.psn = (a.psn + 1000) & 0xffffff
	b.to(t, verbs.StateReset)
	connect(t, a, b)
	transfer(t, b, a, 4096, 40)
	a.quiet(t)
}

// testRecycle uses one pair of QPs for many connections, each with new PSNs, as
// the pool does.
func testRecycle(t *testing.T, open Opener) {
	a, b := newSide(t, open, 64<<10).endpoint(t), newSide(t, open, 64<<10).endpoint(t)
	for i := range uint64(50) {
		a.psn, b.psn = rand.Uint32N(1<<24), rand.Uint32N(1<<24)
		connect(t, a, b)
		transfer(t, a, b, 64<<10, 10*i)
		transfer(t, b, a, 100, 10*i+5)
		a.recv(t, 1)
		for _, e := range []*endpoint{a, b} {
			e.to(t, verbs.StateErr)
			if e == a {
				a.wantStatus(t, verbs.WCWRFlushErr)
			}
			e.to(t, verbs.StateReset)
		}
	}
	a.quiet(t)
	b.quiet(t)
}

// testWrongPSN checks that packets of another connection are not taken.
func testWrongPSN(t *testing.T, open Opener) {
	a, b := newSide(t, open, 4096).endpoint(t), newSide(t, open, 4096).endpoint(t)
	a.modify(t, a.initAttr())
	b.modify(t, b.initAttr())
	from := a.address()
	from.PSN = (from.PSN - 1000) & 0xffffff
	b.modify(t, b.rtrAttr(from))
	a.modify(t, a.rtrAttr(b.address()))
	a.modify(t, a.impatient())
	fill(a.mem.Bytes(), 1)
	fill(b.mem.Bytes(), 2)
	b.recv(t, 1)
	a.send(t, a.write(b.address(), 4096, 2, 3))
	a.wantStatus(t, verbs.WCRetryExcErr)
	wantBytes(t, b.mem.Bytes(), 2)
	b.quiet(t)
}

// testWrongPeer checks that a QP takes packets of the QP it is connected to only.
func testWrongPeer(t *testing.T, open Opener) {
	x, y := newSide(t, open, 4096), newSide(t, open, 4096)
	if !y.ChecksSender {
		t.Skip("RC packets carry no number of the QP that sends them, so only a device that is told it otherwise can check")
	}
	a, stranger, b := x.endpoint(t), x.endpoint(t), y.endpoint(t)
	stranger.psn = a.psn
	connect(t, a, b)
	stranger.modify(t, stranger.initAttr())
	stranger.modify(t, stranger.rtrAttr(b.address()))
	stranger.modify(t, stranger.impatient())
	fill(b.mem.Bytes(), 2)
	b.recv(t, 1)
	stranger.send(t, stranger.write(b.address(), 4096, 2, 3))
	if wc := x.next(t); wc.Status == verbs.WCSuccess || wc.QPN != stranger.qp.Num() {
		t.Fatalf("completion of QP %d: %v", wc.QPN, wc.Status)
	}
	wantBytes(t, y.mem.Bytes(), 2)
	b.quiet(t)
}

// testEarlyWrite posts a WRITE before the peer takes packets: it is sent again
// until the peer does.
func testEarlyWrite(t *testing.T, open Opener) {
	a, b := newSide(t, open, 4096).endpoint(t), newSide(t, open, 4096).endpoint(t)
	a.modify(t, a.initAttr())
	b.modify(t, b.initAttr())
	a.modify(t, a.rtrAttr(b.address()))
	a.modify(t, a.rtsAttr())
	fill(a.mem.Bytes(), 1)
	b.recv(t, 1)
	a.send(t, a.write(b.address(), 4096, 2, 3))
	b.quiet(t)
	b.modify(t, b.rtrAttr(a.address()))
	wantRecv(t, b.next(t), b.qp.Num(), 1, 3, 4096)
	wantSent(t, a.next(t), a.qp.Num(), 2)
	wantBytes(t, b.mem.Bytes(), 1)
}

// testReceiverNotReady posts the receive after the WRITE.
func testReceiverNotReady(t *testing.T, open Opener) {
	a, b := pair(t, open, 4096)
	fill(a.mem.Bytes(), 1)
	a.send(t, a.write(b.address(), 4096, 2, 3))
	a.send(t, a.write(b.address(), 0, 3, 4))
	a.quiet(t)
	b.recv(t, 1)
	wantRecv(t, b.next(t), b.qp.Num(), 1, 3, 4096)
	wantSent(t, a.next(t), a.qp.Num(), 2)
	wantBytes(t, b.mem.Bytes(), 1)
	b.recv(t, 2)
	wantRecv(t, b.next(t), b.qp.Num(), 2, 4, 0)
	wantSent(t, a.next(t), a.qp.Num(), 3)
}

func testReceiverNeverReady(t *testing.T, open Opener) {
	a, b := newSide(t, open, 4096).endpoint(t), newSide(t, open, 4096).endpoint(t)
	a.modify(t, a.initAttr())
	b.modify(t, b.initAttr())
	b.modify(t, b.rtrAttr(a.address()))
	a.modify(t, a.rtrAttr(b.address()))
	attr := a.rtsAttr()
	attr.RNRRetry = 2
	a.modify(t, attr)
	a.send(t, a.write(b.address(), 4096, 2, 3))
	a.wantStatus(t, verbs.WCRNRRetryExcErr)
	a.wantState(t, verbs.StateErr)
}

func testPeerDestroyed(t *testing.T, open Opener) {
	a, b := newSide(t, open, 4096).endpoint(t), newSide(t, open, 4096).endpoint(t)
	a.modify(t, a.initAttr())
	b.modify(t, b.initAttr())
	b.modify(t, b.rtrAttr(a.address()))
	a.modify(t, a.rtrAttr(b.address()))
	a.modify(t, a.impatient())
	mustClose(t, b.qp)
	a.send(t, a.write(b.address(), 4096, 2, 3))
	a.send(t, a.write(b.address(), 4096, 3, 3))
	a.wantStatus(t, verbs.WCRetryExcErr)
	a.wantStatus(t, verbs.WCWRFlushErr)
}

// testMTUMismatch: what fits the smaller MTU passes, one byte more breaks the
// connection.
func testMTUMismatch(t *testing.T, open Opener) {
	x, y := newSide(t, open, 8192), newSide(t, open, 8192)
	if x.MTU < verbs.MTU512 {
		t.Skipf("the path MTU is %d", x.MTU.Bytes())
	}
	y.MTU = x.MTU - 1
	for _, dir := range []struct {
		name string
		from *side
		to   *side
	}{{"from the larger", x, y}, {"from the smaller", y, x}} {
		t.Run(dir.name, func(t *testing.T) {
			a, b := dir.from.endpoint(t), dir.to.endpoint(t)
			connect(t, a, b)
			n := y.MTU.Bytes()
			transfer(t, a, b, n, 1)
			b.recv(t, 1)
			a.send(t, a.write(b.address(), n+1, 2, 3))
			if wc := a.next(t); wc.Status == verbs.WCSuccess {
				t.Error("the message passed")
			}
			a.wantState(t, verbs.StateErr)
			b.to(t, verbs.StateErr)
			if wc := b.next(t); wc.Status == verbs.WCSuccess {
				t.Error("the message was delivered")
			}
		})
	}
}
