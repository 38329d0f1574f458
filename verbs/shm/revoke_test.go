package shm

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/verbs"
)

// hold stops the first WRITE that comes to a point until it is let go.
type hold struct {
	point   Point
	held    chan Write
	release chan struct{}
	done    atomic.Bool
}

func newHold(p Point) *hold {
	return &hold{point: p, held: make(chan Write, 1), release: make(chan struct{})}
}

func (h *hold) faults() *Faults {
	// Pieces make the copy have a middle to be held in.
	return &Faults{Piece: 4096, Hook: func(p Point, w Write) Verdict {
		if p == h.point && h.done.CompareAndSwap(false, true) {
			h.held <- w
			<-h.release
		}
		return Verdict{}
	}}
}

func (h *hold) wait(t *testing.T) Write {
	t.Helper()
	select {
	case w := <-h.held:
		return w
	case <-time.After(20 * time.Second):
		t.Fatal("no WRITE came to the point")
		return Write{}
	}
}

// revokers take the right to write into m through q away.
var revokers = map[string]func(t *testing.T, q verbs.QP, m verbs.MR){
	"MR closed":    func(t *testing.T, _ verbs.QP, m verbs.MR) { mustClose(t, m) },
	"QP to ERR":    func(t *testing.T, q verbs.QP, _ verbs.MR) { modify(t, q, verbs.QPAttr{State: verbs.StateErr}) },
	"QP to RESET":  func(t *testing.T, q verbs.QP, _ verbs.MR) { modify(t, q, verbs.QPAttr{State: verbs.StateReset}) },
	"QP destroyed": func(t *testing.T, q verbs.QP, _ verbs.MR) { mustClose(t, q) },
}

// TestRevokeWaitsForCopy holds a WRITE in the middle of a piece: taking the
// right away must wait, and what comes after the piece must not land.
func TestRevokeWaitsForCopy(t *testing.T) {
	for name, revoke := range revokers {
		t.Run(name, func(t *testing.T) {
			h := newHold(PointPiece)
			a, b := newNode(t, 64<<10, 64, nil), newNode(t, 64<<10, 64, h.faults())
			qa, qb := a.qp(t), b.qp(t)
			connect(t, a, b, qa, qb, 10, 20)
			src, dst := a.reg(t, 0), b.reg(t, remote)
			copy(src.Bytes(), bytes.Repeat([]byte{0xaa}, 64<<10))
			postRecv(t, qb, 7)
			post(t, qa, src, dst, 64<<10, 1)
			h.wait(t)

			done := make(chan struct{})
			go func() {
				revoke(t, qb, dst)
				clear(dst.Bytes())
				close(done)
			}()
			select {
			case <-done:
				t.Error("the right was gone while a copy ran")
			case <-time.After(50 * time.Millisecond):
			}
			close(h.release)
			<-done
			if wc := a.next(t); wc.Status == verbs.WCSuccess {
				t.Error("the WRITE was acknowledged")
			}
			if i := bytes.IndexByte(dst.Bytes(), 0xaa); i >= 0 {
				t.Errorf("byte %d landed after the right was gone", i)
			}
		})
	}
}

// TestRevokeBetweenPieces takes the right away while a WRITE is at a point
// where it holds no lock: that must not wait, and nothing may land afterwards.
func TestRevokeBetweenPieces(t *testing.T) {
	for point, where := range map[Point]string{PointReceived: "received", PointChecked: "checked", PointCopied: "copied"} {
		for name, revoke := range revokers {
			if point == PointCopied && name == "MR closed" {
				continue // all bytes landed while the right was there: it may complete
			}
			t.Run(where+", "+name, func(t *testing.T) {
				h := newHold(point)
				a, b := newNode(t, 64<<10, 64, nil), newNode(t, 64<<10, 64, h.faults())
				qa, qb := a.qp(t), b.qp(t)
				connect(t, a, b, qa, qb, 10, 20)
				src, dst := a.reg(t, 0), b.reg(t, remote)
				copy(src.Bytes(), bytes.Repeat([]byte{0xaa}, 64<<10))
				postRecv(t, qb, 7)
				post(t, qa, src, dst, 64<<10, 1)
				h.wait(t)
				revoke(t, qb, dst)
				clear(dst.Bytes())
				close(h.release)
				if wc := a.next(t); wc.Status == verbs.WCSuccess {
					t.Error("the WRITE was acknowledged")
				}
				if i := bytes.IndexByte(dst.Bytes(), 0xaa); i >= 0 {
					t.Errorf("byte %d landed after the right was gone", i)
				}
				b.noSuccess(t)
			})
		}
	}
}

// idle waits until the responder of q has carried out what it accepted.
func idle(t *testing.T, q verbs.QP) {
	t.Helper()
	eventually(t, "responder idle", func() bool {
		r := q.(*qp)
		r.mu.Lock()
		defer r.mu.Unlock()
		return !r.executing
	})
}

// TestRequesterGivesUp holds a WRITE at the responder while the requester
// takes its memory back and fills it with something else. The responder must not
// announce what it copied.
func TestRequesterGivesUp(t *testing.T) {
	for name, giveUp := range revokers {
		for point, where := range map[Point]string{PointReceived: "received", PointPiece: "in the copy", PointCopied: "copied"} {
			t.Run(where+", "+name, func(t *testing.T) {
				h := newHold(point)
				a, b := newNode(t, 64<<10, 64, nil), newNode(t, 64<<10, 64, h.faults())
				qa, qb := a.qp(t), b.qp(t)
				connect(t, a, b, qa, qb, 10, 20)
				src, dst := a.reg(t, 0), b.reg(t, remote)
				postRecv(t, qb, 7)
				post(t, qa, src, dst, 64<<10, 1)
				h.wait(t)
				giveUp(t, qa, src)
				clear(src.Bytes())
				close(h.release)
				idle(t, qb)
				modify(t, qb, verbs.QPAttr{State: verbs.StateErr})
				if wc := b.next(t); wc.Status != verbs.WCWRFlushErr || wc.ID != 7 {
					t.Errorf("receive %d: %v", wc.ID, wc.Status)
				}
			})
		}
	}
}

// TestOldWriteAfterRecycling lets a WRITE of an old connection go on when both
// QPs serve a new one.
func TestOldWriteAfterRecycling(t *testing.T) {
	for point, where := range map[Point]string{PointSend: "before it was sent", PointReceived: "received", PointCopied: "copied", PointAck: "before the ACK"} {
		t.Run(where, func(t *testing.T) {
			h := newHold(point)
			f := h.faults()
			a, b := newNode(t, 64<<10, 64, f), newNode(t, 64<<10, 64, f)
			qa, qb := a.qp(t), b.qp(t)
			connect(t, a, b, qa, qb, 10, 20)
			src, dst := a.reg(t, 0), b.reg(t, remote)
			copy(src.Bytes(), bytes.Repeat([]byte{0xaa}, 64<<10))
			postRecv(t, qb, 1)
			post(t, qa, src, dst, 32<<10, 1)
			h.wait(t)
			for _, q := range []verbs.QP{qa, qb} {
				modify(t, q, verbs.QPAttr{State: verbs.StateErr})
				modify(t, q, verbs.QPAttr{State: verbs.StateReset})
			}
			clear(dst.Bytes())
			// The same PSNs, which nobody should do: the old one is refused even so.
			connect(t, a, b, qa, qb, 10, 20)
			copy(src.Bytes(), bytes.Repeat([]byte{0xbb}, 64<<10))
			postRecv(t, qb, 2)
			post(t, qa, src, dst, 4096, 3)
			if wc := b.next(t); wc.Status != verbs.WCSuccess || wc.ID != 2 || wc.Imm != 3 {
				t.Fatalf("receive %+v", wc)
			}
			if wc := a.next(t); wc.Status != verbs.WCSuccess || wc.ID != 3 {
				t.Fatalf("send %+v", wc)
			}
			close(h.release)
			postRecv(t, qb, 4)
			post(t, qa, src, dst, 4096, 5)
			if wc := b.next(t); wc.Status != verbs.WCSuccess || wc.ID != 4 || wc.Imm != 5 {
				t.Fatalf("receive %+v", wc)
			}
			if wc := a.next(t); wc.Status != verbs.WCSuccess || wc.ID != 5 {
				t.Fatalf("send %+v", wc)
			}
			mustClose(t, qb)
			want := append(bytes.Repeat([]byte{0xbb}, 4096), make([]byte, 60<<10)...)
			if !bytes.Equal(dst.Bytes(), want) {
				t.Error("the old WRITE landed")
			}
			a.empty(t)
			b.empty(t)
		})
	}
}

// TestLostAck loses acknowledgements: the WRITE comes again and must be
// acknowledged without a second copy.
func TestLostAck(t *testing.T) {
	var acks atomic.Int32
	copies := 0
	f := &Faults{Hook: func(p Point, w Write) Verdict {
		switch p {
		case PointChecked:
			copies++
		case PointAck:
			acks.Add(1)
			return Verdict{Drop: true}
		}
		return Verdict{}
	}}
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 64, f)
	qa, qb := a.qp(t), b.qp(t)
	connect(t, a, b, qa, qb, 10, 20)
	src, dst := a.reg(t, 0), b.reg(t, remote)
	postRecv(t, qb, 1)
	post(t, qa, src, dst, 4096, 2)
	if wc := b.next(t); wc.Status != verbs.WCSuccess {
		t.Fatal(wc.Status)
	}
	dst.Bytes()[0] = 0x77
	if wc := a.next(t); wc.Status != verbs.WCSuccess {
		t.Fatal(wc.Status)
	}
	if dst.Bytes()[0] != 0x77 || copies != 1 || acks.Load() != 1 {
		t.Errorf("%d copies, %d acknowledgements; first byte %#x", copies, acks.Load(), dst.Bytes()[0])
	}
	b.empty(t)
}
