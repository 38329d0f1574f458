package verbstest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"s3rdmafs/verbs"
)

// Peer is an opened device together with the choices to make on it.
type Peer struct {
	Device   verbs.Device
	Port     uint8 // 0: 1
	GIDIndex int
	// GID is the entry at GIDIndex; zero: read from the device.
	GID verbs.GID
	// MTU of the path; 0: the port's active one.
	MTU verbs.MTU
	// ChecksSender tells that the device knows which QP sent a packet.
	ChecksSender bool
}

// Opener opens the device under test. Every call makes a new Device.
type Opener func() (Peer, error)

// patience is how long anything that must happen may take.
const patience = 30 * time.Second

const remote = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// side is a device with one PD, CQ and memory region.
type side struct {
	Peer
	lid uint16
	pd  verbs.PD
	ch  verbs.CompChannel
	cq  verbs.CQ
	mem *verbs.Memory
	mr  verbs.MR
}

func openPeer(open Opener) (Peer, uint16, error) {
	p, err := open()
	if err != nil {
		return p, 0, err
	}
	if p.Port == 0 {
		p.Port = 1
	}
	port, err := p.Device.Port(p.Port)
	if err != nil {
		return p, 0, err
	}
	if p.MTU == 0 {
		p.MTU = port.ActiveMTU
	}
	if p.GID.IsZero() {
		entries, err := p.Device.GIDs(p.Port)
		if err != nil {
			return p, 0, err
		}
		for _, e := range entries {
			if e.Index == p.GIDIndex {
				p.GID = e.GID
			}
		}
	}
	return p, port.LID, nil
}

// newSide opens a device with a region of size bytes. All is closed, and
// checked to close, at the end of the test.
func newSide(t *testing.T, open Opener, size int) *side {
	t.Helper()
	s := &side{}
	var err error
	if s.Peer, s.lid, err = openPeer(open); err != nil {
		t.Fatalf("open device: %v", err)
	}
	t.Cleanup(func() { mustClose(t, s.Device) })
	s.pd = must(s.Device.AllocPD())(t)
	t.Cleanup(func() { mustClose(t, s.pd) })
	s.ch = must(s.Device.CreateCompChannel())(t)
	t.Cleanup(func() { mustClose(t, s.ch) })
	s.cq = must(s.Device.CreateCQ(256, s.ch))(t)
	t.Cleanup(func() { mustClose(t, s.cq) })
	s.mem = must(verbs.NewMemory("verbstest", size))(t)
	t.Cleanup(func() { mustClose(t, s.mem) })
	s.mr = s.reg(t, 0, size, remote)
	return s
}

// must turns a result with an error into one that fails the test.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%T: %v", v, err)
		}
		return v
	}
}

func mustClose(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close %T: %v", c, err)
	}
}

func (s *side) reg(t testing.TB, off, size int, access verbs.Access) verbs.MR {
	t.Helper()
	m := must(s.pd.RegMR(s.mem, off, size, access))(t)
	t.Cleanup(func() { mustClose(t, m) })
	return m
}

// endpoint is a QP with its PSN.
type endpoint struct {
	*side
	qp  verbs.QP
	psn uint32
}

func (s *side) endpoint(t testing.TB) *endpoint {
	t.Helper()
	return s.endpointOf(t, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
}

func (s *side) endpointOf(t testing.TB, init verbs.QPInitAttr) *endpoint {
	t.Helper()
	if init.SendCQ == nil {
		init.SendCQ, init.RecvCQ = s.cq, s.cq
	}
	e := &endpoint{side: s, qp: must(s.pd.CreateQP(init))(t), psn: rand.Uint32N(1<<24-1) + 1}
	t.Cleanup(func() { mustClose(t, e.qp) })
	return e
}

// address is what the other side must know of an endpoint.
type address struct {
	QPN, PSN uint32
	GID      verbs.GID
	LID      uint16
	Addr     uint64
	RKey     uint32
}

func (e *endpoint) address() address {
	return address{QPN: e.qp.Num(), PSN: e.psn, GID: e.GID, LID: e.lid, Addr: e.mr.Addr(), RKey: e.mr.RKey()}
}

func (e *endpoint) initAttr() verbs.QPAttr {
	return verbs.QPAttr{State: verbs.StateInit, Port: e.Port, AccessFlags: verbs.AccessRemoteWrite}
}

func (e *endpoint) rtrAttr(to address) verbs.QPAttr {
	return verbs.QPAttr{State: verbs.StateRTR, PathMTU: e.MTU, DestQPN: to.QPN, RQPSN: to.PSN, MaxDestRdAtomic: 1, MinRNRTimer: 12,
		AH: verbs.AHAttr{DGID: to.GID, SGIDIndex: e.GIDIndex, DLID: to.LID, HopLimit: 64, IsGlobal: true, PortNum: e.Port}}
}

func (e *endpoint) rtsAttr() verbs.QPAttr {
	return verbs.QPAttr{State: verbs.StateRTS, SQPSN: e.psn, Timeout: 14, RetryCnt: 6, RNRRetry: 7, MaxRdAtomic: 1}
}

// impatient is an RTS with a short ACK timeout, for a peer that does not answer.
func (e *endpoint) impatient() verbs.QPAttr {
	a := e.rtsAttr()
	a.Timeout, a.RetryCnt = 12, 3
	return a
}

var fullMask = map[verbs.QPState]verbs.QPAttrMask{
	verbs.StateReset: verbs.AttrState,
	verbs.StateInit:  verbs.MaskInit,
	verbs.StateRTR:   verbs.MaskRTR,
	verbs.StateRTS:   verbs.MaskRTS,
	verbs.StateErr:   verbs.AttrState,
}

func (e *endpoint) modify(t testing.TB, a verbs.QPAttr) {
	t.Helper()
	if err := e.qp.Modify(a, fullMask[a.State]); err != nil {
		t.Fatalf("QP to %v: %v", a.State, err)
	}
}

func (e *endpoint) to(t testing.TB, s verbs.QPState) {
	t.Helper()
	e.modify(t, verbs.QPAttr{State: s})
}

// connect brings both from RESET to RTS.
func connect(t testing.TB, a, b *endpoint) {
	t.Helper()
	a.modify(t, a.initAttr())
	if a != b {
		b.modify(t, b.initAttr())
		b.modify(t, b.rtrAttr(a.address()))
		b.modify(t, b.rtsAttr())
	}
	a.modify(t, a.rtrAttr(b.address()))
	a.modify(t, a.rtsAttr())
}

// pair opens two devices and connects a QP of each.
func pair(t *testing.T, open Opener, size int) (a, b *endpoint) {
	t.Helper()
	a, b = newSide(t, open, size).endpoint(t), newSide(t, open, size).endpoint(t)
	connect(t, a, b)
	return a, b
}

// next waits for one completion of the side's CQ.
func (s *side) next(t testing.TB) verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	wc, err := s.await(ctx)
	if err != nil {
		t.Fatalf("no completion: %v", err)
	}
	return wc
}

// await takes one completion by the channel.
func (s *side) await(ctx context.Context) (verbs.WC, error) {
	var wc [1]verbs.WC
	for {
		if n, err := s.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], err
		}
		if err := s.cq.ReqNotify(); err != nil {
			return wc[0], err
		}
		// What came before the CQ was armed gives no event.
		if n, err := s.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], err
		}
		if _, err := s.ch.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

func (s *side) wantStatus(t testing.TB, want ...verbs.WCStatus) verbs.WC {
	t.Helper()
	wc := s.next(t)
	for _, w := range want {
		if wc.Status == w {
			return wc
		}
	}
	t.Fatalf("completion %v, want %v", wc.Status, want)
	return wc
}

// quiet fails if there is a completion.
func (s *side) quiet(t testing.TB) {
	t.Helper()
	var wc [1]verbs.WC
	n, err := s.cq.Poll(wc[:])
	if err != nil {
		t.Fatal(err)
	}
	if n > 0 {
		t.Fatalf("unexpected completion: ID %d, %v", wc[0].ID, wc[0].Status)
	}
}

// wantRecv checks a good completion of a WRITE WITH IMM.
func wantRecv(t testing.TB, wc verbs.WC, qpn uint32, id uint64, imm uint32, length int) {
	t.Helper()
	if wc.Status != verbs.WCSuccess || wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Flags&verbs.WCFlagWithImm == 0 ||
		wc.Imm != imm || int(wc.ByteLen) != length || wc.QPN != qpn || wc.ID != id {
		t.Fatalf("receive completion %+v, want ID %d, QP %d, imm %#x, %d bytes", wc, id, qpn, imm, length)
	}
}

func wantSent(t testing.TB, wc verbs.WC, qpn uint32, id uint64) {
	t.Helper()
	if wc.Status != verbs.WCSuccess || wc.Opcode != verbs.WCRDMAWrite || wc.QPN != qpn || wc.ID != id {
		t.Fatalf("send completion %+v, want ID %d, QP %d", wc, id, qpn)
	}
}

// write is a signaled WRITE WITH IMM of the first n bytes to the start of dst.
func (e *endpoint) write(dst address, n int, id uint64, imm uint32) verbs.SendWR {
	wr := verbs.SendWR{ID: id, Opcode: verbs.OpWriteWithImm, RemoteAddr: dst.Addr, RKey: dst.RKey, Imm: imm, Signaled: true}
	if n > 0 {
		wr.SGEs = []verbs.SGE{{Addr: e.mr.Addr(), Length: uint32(n), LKey: e.mr.LKey()}}
	}
	return wr
}

func (e *endpoint) send(t testing.TB, wr verbs.SendWR) {
	t.Helper()
	if err := e.qp.PostSend(wr); err != nil {
		t.Fatalf("post send: %v", err)
	}
}

func (e *endpoint) recv(t testing.TB, id uint64) {
	t.Helper()
	if err := e.qp.PostRecv(verbs.RecvWR{ID: id}); err != nil {
		t.Fatalf("post receive: %v", err)
	}
}

// transfer moves n bytes of fresh random data from a to b and checks all of it.
func transfer(t testing.TB, a, b *endpoint, n int, seed uint64) {
	t.Helper()
	fill(a.mem.Bytes()[:n], seed)
	imm := uint32(seed*0x9e3779b1) | 1
	b.recv(t, seed)
	a.send(t, a.write(b.address(), n, seed+1, imm))
	if a.side == b.side {
		// One CQ: the order between the QPs is free.
		for range 2 {
			if wc := a.next(t); wc.ID == seed {
				wantRecv(t, wc, b.qp.Num(), seed, imm, n)
			} else {
				wantSent(t, wc, a.qp.Num(), seed+1)
			}
		}
	} else {
		wantRecv(t, b.next(t), b.qp.Num(), seed, imm, n)
		wantSent(t, a.next(t), a.qp.Num(), seed+1)
		wantBytes(t, b.mem.Bytes()[:n], seed)
	}
}

func fill(p []byte, seed uint64) {
	var key [32]byte
	key[0], key[1], key[2], key[3] = byte(seed), byte(seed>>8), byte(seed>>16), byte(seed>>24)
	rand.NewChaCha8(key).Read(p)
}

func wantBytes(t testing.TB, got []byte, seed uint64) {
	t.Helper()
	want := make([]byte, len(got))
	fill(want, seed)
	if !bytes.Equal(got, want) {
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("data differs from byte %d of %d", i, len(want))
			}
		}
	}
}

// firstNonZero is where memory that was cleared is not zero any more; -1: it is.
func firstNonZero(p []byte) int {
	var zero [4096]byte
	for off := 0; off < len(p); off += len(zero) {
		piece := p[off:min(off+len(zero), len(p))]
		if bytes.Equal(piece, zero[:len(piece)]) {
			continue
		}
		for i, v := range piece {
			if v != 0 {
				return off + i
			}
		}
	}
	return -1
}

// eventually waits until cond is true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

func (e *endpoint) wantState(t testing.TB, want verbs.QPState) {
	t.Helper()
	eventually(t, "QP in "+want.String(), func() bool {
		s, err := e.qp.State()
		if err != nil {
			t.Fatal(err)
		}
		return s == want
	})
}
