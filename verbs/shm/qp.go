package shm

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"s3rdmafs/verbs"
)

// window is how many WRITEs of one QP may be on the wire at a time.
const window = 16

// maxPSNsInFlight keeps old and new PSNs apart (IB: half of the PSN space).
const maxPSNsInFlight = 1 << 23

type qp struct {
	dev            *Device
	pd             *pd
	num            uint32
	slot           uint32
	cap            verbs.QPCap
	sigAll         bool
	sendCQ, recvCQ *cq

	// sqUsed and rqUsed count the occupied entries of the work queues.
	sqUsed, rqUsed atomic.Int32

	// gen changes whenever the QP stops to accept requests. It is written with
	// mu held and read with copyMu held.
	gen atomic.Uint64
	// copyMu is held over each piece of a copy through this QP.
	copyMu sync.Mutex

	mu     sync.Mutex
	closed bool
	state  verbs.QPState
	// epoch is the value of the QP's slot in the epoch page; it changes whenever
	// the QP gives up what it has in flight.
	epoch uint64

	access   verbs.Access
	mtu      verbs.MTU
	destQPN  uint32
	dgid     verbs.GID
	minRNR   uint8
	timeout  uint8
	retryCnt uint8
	rnrRetry uint8

	requester
	responder
}

func (p *pd) CreateQP(init verbs.QPInitAttr) (verbs.QP, error) {
	d := p.dev
	scq, ok1 := init.SendCQ.(*cq)
	rcq, ok2 := init.RecvCQ.(*cq)
	if !ok1 || !ok2 || scq.dev != d || rcq.dev != d {
		return nil, fmt.Errorf("%w: CQ of another device", verbs.ErrInvalid)
	}
	c := init.Cap
	if c.MaxSendWR < 0 || c.MaxSendWR > maxQPWR || c.MaxRecvWR < 0 || c.MaxRecvWR > maxQPWR ||
		c.MaxSendSGE < 0 || c.MaxSendSGE > maxSGE || c.MaxRecvSGE < 0 || c.MaxRecvSGE > maxSGE {
		return nil, fmt.Errorf("%w: QP of %+v", verbs.ErrInvalid, c)
	}
	q := &qp{dev: d, pd: p, cap: c, sigAll: init.SigAll, sendCQ: scq, recvCQ: rcq}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range []*cq{scq, rcq} {
		if _, ok := d.cqs[c]; !ok {
			return nil, verbs.ErrClosed
		}
	}
	if _, ok := d.pds[p]; !ok {
		return nil, verbs.ErrClosed
	}
	if len(d.slots) == 0 {
		return nil, fmt.Errorf("%w: %d QPs", verbs.ErrNoResource, maxQP)
	}
	q.slot, d.slots = d.slots[0], d.slots[1:]
	q.epoch = d.epochs.slot(q.slot).Load()
	d.keyMu.Lock()
	for {
		d.nextQPN = (d.nextQPN + 1) & mask24
		// 0 and 1 are the special QPs of a port.
		if _, used := d.qps[d.nextQPN]; !used && d.nextQPN > 1 {
			break
		}
	}
	q.num = d.nextQPN
	d.qps[q.num] = q
	d.keyMu.Unlock()
	p.refs++
	scq.refs++
	rcq.refs++
	return q, nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) State() (verbs.QPState, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, verbs.ErrClosed
	}
	return q.state, nil
}

func (q *qp) Modify(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	if mask&verbs.AttrState == 0 {
		a.State = q.state
	}
	if err := checkModify(q.state, a, mask); err != nil {
		return err
	}
	if mask&verbs.AttrAV != 0 {
		if err := q.dev.reach(a.AH.DGID); err != nil {
			return err
		}
	}
	q.apply(a, mask)
	from := q.state
	switch a.State {
	case verbs.StateReset:
		q.state = verbs.StateReset
		q.discard()
	case verbs.StateRTR:
		q.state = verbs.StateRTR
		q.responder.start(a.RQPSN)
	case verbs.StateRTS:
		q.state = verbs.StateRTS
		if from == verbs.StateRTR {
			q.requester.start(a.SQPSN)
		}
		q.kick()
	case verbs.StateErr:
		q.toErr()
	default:
		q.state = a.State
	}
	return nil
}

func (q *qp) apply(a verbs.QPAttr, mask verbs.QPAttrMask) {
	if mask&verbs.AttrAccessFlags != 0 {
		q.access = a.AccessFlags
	}
	if mask&verbs.AttrPathMTU != 0 {
		q.mtu = a.PathMTU
	}
	if mask&verbs.AttrDestQPN != 0 {
		q.destQPN = a.DestQPN
	}
	if mask&verbs.AttrAV != 0 {
		q.dgid = a.AH.DGID
	}
	if mask&verbs.AttrMinRNRTimer != 0 {
		q.minRNR = a.MinRNRTimer
	}
	if mask&verbs.AttrTimeout != 0 {
		q.timeout = a.Timeout
	}
	if mask&verbs.AttrRetryCnt != 0 {
		q.retryCnt = a.RetryCnt
	}
	if mask&verbs.AttrRNRRetry != 0 {
		q.rnrRetry = a.RNRRetry
	}
}

// revoke ends everything that is under way in both directions. When it
// returns no copy through the QP runs, and none can begin that was requested
// before. q.mu is held.
func (q *qp) revoke() {
	q.gen.Add(1)
	q.epoch++
	q.dev.epochs.slot(q.slot).Store(q.epoch)
	q.copyMu.Lock()
	// Nothing to do: whoever copies now has ended, the next one sees gen.
	q.copyMu.Unlock() //nolint:staticcheck // the lock is a barrier
	q.responder.stop()
	q.requester.stop()
}

// toErr moves the QP to ERR and flushes both queues, in order. The flushed
// receives appear only after the last byte landed. q.mu is held.
func (q *qp) toErr() {
	if q.state == verbs.StateErr {
		return
	}
	q.state = verbs.StateErr
	q.revoke()
	for _, r := range q.inflight {
		r.unpin()
		q.completeSend(r.wr, verbs.WCWRFlushErr, 0)
	}
	for _, wr := range q.pending {
		q.completeSend(wr, verbs.WCWRFlushErr, 0)
	}
	for _, wr := range q.recvs {
		q.complete(q.recvCQ, errorWC(wr.ID, q.num, verbs.WCWRFlushErr), 0, 1)
	}
	q.inflight, q.pending, q.recvs = nil, nil, nil
}

// discard forgets all work requests and their completions. q.mu is held.
func (q *qp) discard() {
	q.revoke()
	for _, r := range q.inflight {
		r.unpin()
	}
	q.inflight, q.pending, q.recvs = nil, nil, nil
	q.sendCQ.purge(q)
	q.recvCQ.purge(q)
	q.sqUsed.Store(0)
	q.rqUsed.Store(0)
	q.unreported = 0
}

// fail moves the QP to ERR for a reason outside of its own work, which only an
// event can tell of. What goes wrong with its own is told by completions.
func (q *qp) fail() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.state == verbs.StateReset || q.state == verbs.StateErr {
		return
	}
	q.toErr()
	q.dev.emit(verbs.Event{Type: verbs.EventQPFatal, QPN: q.num})
}

func (q *qp) complete(c *cq, wc verbs.WC, sq, rq int32) {
	if c.push(cqe{wc: wc, qp: q, sq: sq, rq: rq}) {
		q.dev.spawn(func() { q.dev.overrun(c) })
	}
}

// completeSend ends a send WR. q.mu is held.
func (q *qp) completeSend(wr verbs.SendWR, status verbs.WCStatus, length uint64) {
	q.unreported++
	if status == verbs.WCSuccess && !wr.Signaled && !q.sigAll {
		return
	}
	wc := verbs.WC{ID: wr.ID, Opcode: verbs.WCRDMAWrite, ByteLen: uint32(length), QPN: q.num}
	if status != verbs.WCSuccess {
		wc = errorWC(wr.ID, q.num, status)
	}
	q.complete(q.sendCQ, wc, q.unreported, 0)
	q.unreported = 0
}

func (q *qp) PostSend(wr verbs.SendWR) error {
	if len(wr.SGEs) > q.cap.MaxSendSGE {
		return fmt.Errorf("%w: %d SGEs of %d", verbs.ErrInvalid, len(wr.SGEs), q.cap.MaxSendSGE)
	}
	if wr.Opcode != verbs.OpWrite && wr.Opcode != verbs.OpWriteWithImm {
		return fmt.Errorf("%w: opcode %d", verbs.ErrInvalid, wr.Opcode)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	switch q.state {
	case verbs.StateReset, verbs.StateInit, verbs.StateRTR:
		return fmt.Errorf("%w: send on a QP in %v", verbs.ErrInvalid, q.state)
	}
	if int(q.sqUsed.Load()) >= q.cap.MaxSendWR {
		return fmt.Errorf("%w: %d sends", verbs.ErrQueueFull, q.cap.MaxSendWR)
	}
	q.sqUsed.Add(1)
	if q.state == verbs.StateErr {
		q.completeSend(wr, verbs.WCWRFlushErr, 0)
		return nil
	}
	wr.SGEs = slices.Clone(wr.SGEs)
	q.pending = append(q.pending, wr)
	q.kick()
	return nil
}

func (q *qp) PostRecv(wr verbs.RecvWR) error {
	if len(wr.SGEs) > q.cap.MaxRecvSGE {
		return fmt.Errorf("%w: %d SGEs of %d", verbs.ErrInvalid, len(wr.SGEs), q.cap.MaxRecvSGE)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	if q.state == verbs.StateReset {
		return fmt.Errorf("%w: receive on a QP in %v", verbs.ErrInvalid, q.state)
	}
	if int(q.rqUsed.Load()) >= q.cap.MaxRecvWR {
		return fmt.Errorf("%w: %d receives", verbs.ErrQueueFull, q.cap.MaxRecvWR)
	}
	q.rqUsed.Add(1)
	if q.state == verbs.StateErr {
		q.complete(q.recvCQ, errorWC(wr.ID, q.num, verbs.WCWRFlushErr), 0, 1)
		return nil
	}
	wr.SGEs = nil // a WRITE WITH IMM consumes the request, never its buffers
	q.recvs = append(q.recvs, wr)
	return nil
}

func (q *qp) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.state = verbs.StateReset
	q.discard()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.mu.Unlock()

	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keyMu.Lock()
	delete(d.qps, q.num)
	d.keyMu.Unlock()
	d.slots = append(d.slots, q.slot)
	q.pd.refs--
	q.sendCQ.refs--
	q.recvCQ.refs--
	return nil
}

// packets is how many PSNs a message takes.
func packets(length uint64, mtu verbs.MTU) uint32 {
	n := uint64(mtu.Bytes())
	return uint32(max(1, (length+n-1)/n))
}

// psnDistance is how far b is behind a, going up from a.
func psnDistance(a, b uint32) uint32 { return (b - a) & mask24 }

// ackTimeout is the time after which an unanswered request is sent again.
func ackTimeout(exp uint8) time.Duration { return time.Duration(4096<<exp) * time.Nanosecond }
