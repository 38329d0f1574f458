package shm

import (
	"time"

	"s3rdmafs/verbs"
)

// requester is the sending half of a QP. All of it is guarded by qp.mu.
type requester struct {
	pending  []verbs.SendWR // posted, not begun
	inflight []*sendReq     // begun, not completed; oldest first
	sqPSN    uint32         // of the next WR
	halted   bool           // a WR in flight is bound to fail: begin no other
	// unreported counts the finished WRs since the last completion.
	unreported int32

	sending  bool // a goroutine runs send for this epoch
	resend   bool // all in flight are to be sent again
	rnrWait  bool
	tries    uint8
	rnrTries uint8

	deadline time.Time // of the oldest in flight
	timer    *time.Timer
	timerOn  bool
	conn     *outConn  // the last request went this way
	starved  time.Time // since when the wire only seems to be slow
}

// sendReq is a WR in flight.
type sendReq struct {
	wr      verbs.SendWR
	frame   writeFrame
	mrs     []*mr
	length  uint64
	packets uint32
	// fail, if set, is the status that the WR ends with once it is the oldest.
	fail verbs.WCStatus
}

func (r *sendReq) unpin() {
	for _, m := range r.mrs {
		m.sends.Add(-1)
	}
	r.mrs = r.mrs[:0:0]
}

func (r *requester) start(psn uint32) {
	r.sqPSN = psn
	r.tries, r.rnrTries = 0, 0
}

func (r *requester) stop() {
	r.halted, r.sending, r.resend, r.rnrWait = false, false, false, false
	r.conn, r.starved = nil, time.Time{}
}

func (q *qp) sendState() bool {
	return !q.closed && (q.state == verbs.StateRTS || q.state == verbs.StateSQD)
}

// kick starts the sending goroutine if there is something to send. q.mu is held.
func (q *qp) kick() {
	if q.sending || !q.sendState() || q.rnrWait {
		return
	}
	if q.resend || q.mayBegin() {
		q.sending = true
		epoch := q.epoch
		q.dev.spawn(func() { q.send(epoch) })
	}
}

func (q *qp) mayBegin() bool {
	return q.state == verbs.StateRTS && !q.halted && len(q.pending) > 0 && len(q.inflight) < window
}

// send puts requests on the wire until there are none. It ends when the QP has
// left the epoch: a new life of the QP has a sender of its own.
func (q *qp) send(epoch uint64) {
	for {
		q.mu.Lock()
		if q.epoch != epoch {
			q.mu.Unlock()
			return
		}
		batch := q.nextBatch()
		if len(batch) == 0 {
			q.sending = q.epoch != epoch && q.sending
			q.mu.Unlock()
			return
		}
		dgid := q.dgid
		q.mu.Unlock()
		for _, r := range batch {
			if !q.transmit(dgid, epoch, r) {
				break
			}
		}
	}
}

// nextBatch returns what is to be sent now. q.mu is held.
func (q *qp) nextBatch() []*sendReq {
	if !q.sendState() || q.rnrWait {
		return nil
	}
	if q.resend {
		q.resend = false
		q.arm()
		batch := make([]*sendReq, 0, len(q.inflight))
		for _, r := range q.inflight {
			if r.fail != verbs.WCSuccess {
				break
			}
			batch = append(batch, r)
		}
		return batch
	}
	var batch []*sendReq
	for q.mayBegin() {
		wr := q.pending[0]
		r, status := q.begin(wr)
		if status != verbs.WCSuccess {
			q.pending = q.pending[1:]
			r = &sendReq{wr: wr, fail: status}
			q.inflight = append(q.inflight, r)
			q.halted = true
			q.failHead()
			break
		}
		if n := len(q.inflight); n > 0 {
			oldest := q.inflight[0].frame.PSN
			if psnDistance(oldest, q.sqPSN)+r.packets > maxPSNsInFlight {
				r.unpin()
				break
			}
		} else {
			q.tries, q.rnrTries = 0, 0
		}
		q.pending = q.pending[1:]
		q.sqPSN = (q.sqPSN + r.packets) & mask24
		q.inflight = append(q.inflight, r)
		if len(q.inflight) == 1 {
			q.arm()
		}
		batch = append(batch, r)
	}
	return batch
}

// begin checks the local side of a WR and makes the request. On success the
// regions count it as a reader. q.mu is held.
func (q *qp) begin(wr verbs.SendWR) (*sendReq, verbs.WCStatus) {
	r := &sendReq{wr: wr}
	f := &r.frame
	f.HasImm = wr.Opcode == verbs.OpWriteWithImm
	f.Imm = wr.Imm
	f.MTU = q.mtu
	f.SrcQPN, f.DstQPN = q.num, q.destQPN
	f.PSN = q.sqPSN
	f.Slot, f.Epoch = q.slot, q.epoch
	f.RemoteAddr, f.RKey = wr.RemoteAddr, wr.RKey
	for _, s := range wr.SGEs {
		r.length += uint64(s.Length)
	}
	if r.length > maxMsgSize {
		return nil, verbs.WCLocLenErr
	}
	for _, s := range wr.SGEs {
		if s.Length == 0 {
			continue
		}
		m := q.dev.mrByLKey(s.LKey)
		if m == nil || m.pd != q.pd || !m.addReader() {
			r.unpin()
			return nil, verbs.WCLocProtErr
		}
		r.mrs = append(r.mrs, m)
		off, ok := m.offset(s.Addr, uint64(s.Length))
		if !ok {
			r.unpin()
			return nil, verbs.WCLocProtErr
		}
		f.SGEs = append(f.SGEs, frameSGE{Mem: m.exp.id, Off: uint64(m.off + off), Length: s.Length})
	}
	r.packets = packets(r.length, q.mtu)
	return r, verbs.WCSuccess
}

// addReader counts a WR in flight, unless the region is closed.
func (m *mr) addReader() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.dead {
		return false
	}
	m.sends.Add(1)
	return true
}

// transmit puts one request on the wire; false stops the batch. What cannot be
// sent counts as lost: the ACK timeout takes care of it.
func (q *qp) transmit(dgid verbs.GID, epoch uint64, r *sendReq) bool {
	v := q.dev.faults.hook(PointSend, &r.frame)
	q.mu.Lock()
	if q.epoch != epoch {
		q.mu.Unlock()
		return false
	}
	if v.Status != verbs.WCSuccess {
		r.fail = v.Status
		q.halted = true
		q.failHead()
		q.mu.Unlock()
		return false
	}
	// A copy, since the regions may be closed from here on.
	mems := make([]*exported, len(r.mrs))
	for i, m := range r.mrs {
		mems[i] = m.exp
	}
	q.mu.Unlock()
	if v.Drop || q.dev.down.Load() || len(mems) != len(r.frame.SGEs) {
		return true
	}
	c, err := q.dev.connTo(dgid)
	if err == nil {
		err = c.write(&r.frame, mems)
	}
	q.mu.Lock()
	if q.epoch == epoch {
		q.conn = c
	}
	q.mu.Unlock()
	if err != nil {
		q.dev.log.Debug("shm: request lost", "qpn", q.num, "err", err)
	}
	return true
}

// failHead ends the oldest WR in flight if it is bound to fail. q.mu is held.
func (q *qp) failHead() {
	if len(q.inflight) > 0 && q.inflight[0].fail != verbs.WCSuccess {
		q.endHead(q.inflight[0].fail)
	}
}

// endHead completes the oldest WR in flight with an error. q.mu is held.
func (q *qp) endHead(status verbs.WCStatus) {
	r := q.inflight[0]
	q.inflight = q.inflight[1:]
	r.unpin()
	q.completeSend(r.wr, status, 0)
	q.toErr()
}

// ackUpTo completes the n oldest WRs in flight. q.mu is held.
func (q *qp) ackUpTo(n int) {
	for _, r := range q.inflight[:n] {
		r.unpin()
		q.completeSend(r.wr, verbs.WCSuccess, r.length)
	}
	clear(q.inflight[:n])
	q.inflight = q.inflight[n:]
	q.tries, q.starved = 0, time.Time{}
	if n > 0 {
		q.rnrTries = 0
	}
	q.arm()
}

// failSendsFrom ends the WRs in flight that read a region which is gone.
func (q *qp) failSendsFrom(m *mr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, r := range q.inflight {
		for _, used := range r.mrs {
			if used != m {
				continue
			}
			for _, older := range q.inflight[:i] {
				older.unpin()
				q.completeSend(older.wr, verbs.WCWRFlushErr, 0)
			}
			q.inflight = q.inflight[i:]
			q.endHead(verbs.WCLocProtErr)
			return
		}
	}
}

// answer takes a reply of the responder at peer.
func (q *qp) answer(peer verbs.GID, f replyFrame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dev.down.Load() {
		return
	}
	if !q.sendState() || f.Epoch != q.epoch || peer != q.dgid {
		return
	}
	at := -1
	for i, r := range q.inflight {
		if r.frame.PSN == f.PSN && r.frame.Epoch == f.Epoch {
			at = i
			break
		}
	}
	if at < 0 {
		return
	}
	switch f.Kind {
	case replyACK:
		q.ackUpTo(at + 1)
		q.failHead()
		q.kick()
	case replyNAK:
		q.ackUpTo(at)
		q.endHead(verbs.WCStatus(f.Code))
	case replyRNR:
		q.ackUpTo(at)
		q.notReady(uint8(f.Code))
	case replyProgress:
		q.tries, q.starved = 0, time.Time{}
		q.arm()
	case replyNeedMem:
		q.resend = true
		q.kick()
	}
}

// notReady waits for the time the responder asked for. q.mu is held.
func (q *qp) notReady(code uint8) {
	if q.rnrWait {
		return
	}
	if q.rnrRetry != 7 {
		if q.rnrTries >= q.rnrRetry {
			q.endHead(verbs.WCRNRRetryExcErr)
			return
		}
		q.rnrTries++
	}
	q.rnrWait = true
	epoch := q.epoch
	time.AfterFunc(rnrDelay(code), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.epoch != epoch || !q.rnrWait {
			return
		}
		q.rnrWait = false
		q.resend = true
		q.arm()
		q.kick()
	})
}

// rnrDelay is the time of an RNR NAK timer code (IB table 45).
func rnrDelay(code uint8) time.Duration {
	hundredths := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
		256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
	return time.Duration(hundredths[code&31]) * 10 * time.Microsecond
}

// arm restarts the ACK timer for the oldest WR in flight. The running timer is
// left alone: it looks at the deadline when it fires. q.mu is held.
func (q *qp) arm() {
	if q.timeout == 0 || len(q.inflight) == 0 {
		return
	}
	d := ackTimeout(q.timeout)
	q.deadline = time.Now().Add(d)
	if q.timerOn {
		return
	}
	q.startTimer(d)
}

func (q *qp) startTimer(d time.Duration) {
	q.timerOn = true
	if q.timer == nil {
		q.timer = time.AfterFunc(d, q.expire)
		return
	}
	q.timer.Reset(d)
}

func (q *qp) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timerOn = false
	if !q.sendState() || len(q.inflight) == 0 || q.timeout == 0 {
		return
	}
	if left := time.Until(q.deadline); left > 0 {
		q.startTimer(left)
		return
	}
	if q.rnrWait {
		q.arm()
		return
	}
	if q.conn != nil && q.conn.busy() {
		if q.starved.IsZero() {
			q.starved = time.Now()
		}
		if time.Since(q.starved) < q.dev.starve {
			q.arm()
			return
		}
	}
	q.starved = time.Time{}
	if q.tries >= q.retryCnt {
		q.endHead(verbs.WCRetryExcErr)
		return
	}
	q.tries++
	q.resend = true
	q.arm()
	q.kick()
}
