package shm

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"s3rdmafs/verbs"
)

// node is a device with what a test needs of it.
type node struct {
	dev *Device
	pd  verbs.PD
	ch  verbs.CompChannel
	cq  verbs.CQ
	mem *verbs.Memory
}

func newNode(t testing.TB, size, depth int, f *Faults) *node {
	t.Helper()
	dev, err := Open(Options{Faults: f, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{dev: dev.(*Device)}
	if n.pd, err = dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if n.ch, err = dev.CreateCompChannel(); err != nil {
		t.Fatal(err)
	}
	if n.cq, err = dev.CreateCQ(depth, n.ch); err != nil {
		t.Fatal(err)
	}
	if n.mem, err = verbs.NewMemory("test", size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mustClose(t, n.cq, n.ch, n.pd, n.mem, n.dev)
	})
	return n
}

func mustClose(t testing.TB, all ...interface{ Close() error }) {
	t.Helper()
	for _, c := range all {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	}
}

func (n *node) reg(t testing.TB, access verbs.Access) verbs.MR {
	t.Helper()
	m, err := n.pd.RegMR(n.mem, 0, len(n.mem.Bytes()), access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, m) })
	return m
}

func (n *node) qp(t testing.TB) verbs.QP {
	t.Helper()
	q, err := n.pd.CreateQP(verbs.QPInitAttr{SendCQ: n.cq, RecvCQ: n.cq,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, q) })
	return q
}

// eventPatience is how long an event may take.
const eventPatience = 20 * time.Second

const remote = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

func initAttr() verbs.QPAttr {
	return verbs.QPAttr{State: verbs.StateInit, Port: 1, AccessFlags: remote}
}

func rtrAttr(peer *node, qpn, psn uint32) verbs.QPAttr {
	return verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU4096, DestQPN: qpn, RQPSN: psn, MaxDestRdAtomic: 1, MinRNRTimer: 12,
		AH: verbs.AHAttr{DGID: peer.dev.gid, IsGlobal: true, PortNum: 1, HopLimit: 64}}
}

func rtsAttr(psn uint32) verbs.QPAttr {
	return verbs.QPAttr{State: verbs.StateRTS, SQPSN: psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1}
}

func modify(t testing.TB, q verbs.QP, a verbs.QPAttr) {
	t.Helper()
	masks := map[verbs.QPState]verbs.QPAttrMask{verbs.StateInit: verbs.MaskInit, verbs.StateRTR: verbs.MaskRTR, verbs.StateRTS: verbs.MaskRTS,
		verbs.StateErr: verbs.AttrState, verbs.StateReset: verbs.AttrState}
	if err := q.Modify(a, masks[a.State]); err != nil {
		t.Fatal(err)
	}
}

// connect brings a QP of each node to RTS towards the other.
func connect(t testing.TB, a, b *node, qa, qb verbs.QP, psnA, psnB uint32) {
	t.Helper()
	modify(t, qa, initAttr())
	modify(t, qb, initAttr())
	modify(t, qa, rtrAttr(b, qb.Num(), psnB))
	modify(t, qb, rtrAttr(a, qa.Num(), psnA))
	modify(t, qa, rtsAttr(psnA))
	modify(t, qb, rtsAttr(psnB))
}

// next waits for one completion.
func (n *node) next(t testing.TB) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		got, err := n.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if got == 1 {
			return wc[0]
		}
		if err := n.cq.ReqNotify(); err != nil {
			t.Fatal(err)
		}
		if got, _ := n.cq.Poll(wc[:]); got == 1 {
			return wc[0]
		}
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		_, err = n.ch.Wait(ctx)
		cancel()
		if err != nil {
			t.Fatalf("no completion: %v", err)
		}
	}
	t.Fatal("no completion")
	return verbs.WC{}
}

func postRecv(t testing.TB, q verbs.QP, id uint64) {
	t.Helper()
	if err := q.PostRecv(verbs.RecvWR{ID: id}); err != nil {
		t.Fatal(err)
	}
}

// post sends a signaled WRITE WITH IMM of the first n bytes; imm is the ID.
func post(t testing.TB, q verbs.QP, src, dst verbs.MR, n int, id uint64) {
	t.Helper()
	wr := verbs.SendWR{ID: id, Opcode: verbs.OpWriteWithImm, RemoteAddr: dst.Addr(), RKey: dst.RKey(), Imm: uint32(id), Signaled: true,
		SGEs: []verbs.SGE{{Addr: src.Addr(), Length: uint32(n), LKey: src.LKey()}}}
	if err := q.PostSend(wr); err != nil {
		t.Fatal(err)
	}
}

// empty fails if there is a completion.
func (n *node) empty(t testing.TB) {
	t.Helper()
	var wc [1]verbs.WC
	if got, err := n.cq.Poll(wc[:]); err != nil || got > 0 {
		t.Errorf("unexpected completion %+v, %v", wc[0], err)
	}
}

// noSuccess fails if a good completion is among those there are.
func (n *node) noSuccess(t testing.TB) {
	t.Helper()
	var wc [1]verbs.WC
	for {
		got, err := n.cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if got == 0 {
			return
		}
		if wc[0].Status == verbs.WCSuccess {
			t.Errorf("good completion of %d", wc[0].ID)
		}
	}
}

// eventually waits until cond is true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}
