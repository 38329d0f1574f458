package shm

import (
	"s3rdmafs/verbs"
)

const (
	// pieceSize is how much is copied at a time: the longest that taking rights
	// away has to wait for.
	pieceSize = 512 << 10
	// inlineSize is up to which length the goroutine that reads the socket copies
	// itself, which saves a switch but holds up the other QPs of that peer.
	inlineSize = 16 << 10
)

// responder is the receiving half of a QP. All of it is guarded by qp.mu.
type responder struct {
	recvs []verbs.RecvWR
	queue []*inWrite // accepted, not begun
	// acceptPSN is the next to be accepted, execPSN the next to be carried out.
	acceptPSN, execPSN uint32
	// done counts the PSNs carried out since RTR; what is further back is no
	// duplicate but from another life.
	done      uint32
	executing bool // a goroutine runs execute for this gen
}

// inWrite is a WRITE that was accepted in order.
type inWrite struct {
	frame   *writeFrame
	conn    *inConn
	mems    []*peerMem
	gen     uint64
	packets uint32
}

func (w *inWrite) release() {
	for _, m := range w.mems {
		m.release()
	}
	w.conn.release()
}

func (r *responder) start(psn uint32) {
	r.acceptPSN, r.execPSN, r.done = psn, psn, 0
}

func (r *responder) stop() {
	for _, w := range r.queue {
		w.release()
	}
	r.queue = nil
	r.executing = false
}

func (q *qp) recvState() bool {
	return !q.closed && (q.state == verbs.StateRTR || q.state == verbs.StateRTS || q.state == verbs.StateSQD)
}

// receive takes a request off the wire. mems are held for it; receive keeps or
// releases them. Requests that do not belong to the QP's present connection, or
// that are out of order, are dropped without an answer.
func (q *qp) receive(c *inConn, f *writeFrame, mems []*peerMem) {
	w := &inWrite{frame: f, conn: c, mems: mems}
	c.hold()
	q.mu.Lock()
	if !q.recvState() || c.gid != q.dgid || f.SrcQPN != q.destQPN || !c.epochs.current(f.Slot, f.Epoch) {
		q.mu.Unlock()
		w.release()
		return
	}
	w.gen = q.gen.Load()
	w.packets = packets(f.length(), f.MTU)
	switch behind := psnDistance(f.PSN, q.execPSN); {
	case f.PSN == q.acceptPSN && len(q.queue) < window:
		q.acceptPSN = (q.acceptPSN + w.packets) & mask24
		q.queue = append(q.queue, w)
		if q.executing {
			q.mu.Unlock()
			return
		}
		q.executing = true
		gen := w.gen
		inline := q.dev.faults == nil && f.length() <= inlineSize
		if !inline {
			q.dev.spawn(func() { q.execute(gen) })
		}
		q.mu.Unlock()
		if inline {
			q.execute(gen)
		}
	case psnDistance(q.execPSN, f.PSN) < psnDistance(q.execPSN, q.acceptPSN):
		q.mu.Unlock()
		c.reply(f.reply(replyProgress, 0))
		w.release()
	case behind > 0 && behind <= q.done:
		q.mu.Unlock()
		c.reply(f.reply(replyACK, 0))
		w.release()
	default:
		q.mu.Unlock()
		w.release()
	}
}

func (w *writeFrame) reply(k replyKind, code uint64) replyFrame {
	return replyFrame{Kind: k, QPN: w.SrcQPN, PSN: w.PSN, Epoch: w.Epoch, Code: code}
}

// execute carries out the accepted requests one by one. It ends when the QP
// stopped to accept the connection they came over.
func (q *qp) execute(gen uint64) {
	for {
		q.mu.Lock()
		if q.gen.Load() != gen {
			q.mu.Unlock()
			return
		}
		if len(q.queue) == 0 {
			q.executing = false
			q.mu.Unlock()
			return
		}
		w := q.queue[0]
		q.queue = q.queue[1:]
		q.mu.Unlock()
		if r, ok := q.carryOut(w); ok {
			w.conn.reply(r)
		}
		w.release()
	}
}

// carryOut does one WRITE and says what to answer, if anything.
func (q *qp) carryOut(w *inWrite) (replyFrame, bool) {
	f, faults := w.frame, q.dev.faults
	if v := faults.hook(PointReceived, f); v != (Verdict{}) {
		return q.refuse(w, v)
	}
	length := f.length()
	q.mu.Lock()
	stale := q.gen.Load() != w.gen
	writable := q.access&verbs.AccessRemoteWrite != 0
	tooLong := q.mtu != f.MTU && length > uint64(min(q.mtu, f.MTU).Bytes())
	noReceive := f.HasImm && len(q.recvs) == 0
	rnrCode := uint64(q.minRNR)
	q.mu.Unlock()
	switch {
	case stale:
		return replyFrame{}, false
	case !writable, tooLong:
		return q.nak(w, verbs.WCRemInvReqErr)
	case noReceive:
		q.rollBack(w)
		return f.reply(replyRNR, rnrCode), true
	}
	var dst []byte
	var m *mr
	if length > 0 {
		m = q.dev.mrByRKey(f.RKey)
		if m == nil || m.pd != q.pd || m.access&verbs.AccessRemoteWrite == 0 {
			return q.nak(w, verbs.WCRemAccessErr)
		}
		off, ok := m.offset(f.RemoteAddr, length)
		if !ok {
			return q.nak(w, verbs.WCRemAccessErr)
		}
		dst = m.buf[off : off+int(length)]
	}
	if v := faults.hook(PointChecked, f); v != (Verdict{}) {
		return q.refuse(w, v)
	}
	if length > 0 {
		switch q.copyAll(w, m, dst) {
		case copyStale:
			q.rollBack(w)
			return replyFrame{}, false
		case copyDenied:
			return q.nak(w, verbs.WCRemAccessErr)
		}
	}
	if v := faults.hook(PointCopied, f); v != (Verdict{}) {
		return q.refuse(w, v)
	}
	q.mu.Lock()
	if q.gen.Load() != w.gen || !w.conn.epochs.current(f.Slot, f.Epoch) {
		q.mu.Unlock()
		return replyFrame{}, false
	}
	if f.HasImm {
		wr := q.recvs[0]
		q.recvs = q.recvs[1:]
		q.complete(q.recvCQ, verbs.WC{
			ID:      wr.ID,
			Opcode:  verbs.WCRecvRDMAWithImm,
			ByteLen: uint32(length),
			Imm:     f.Imm,
			QPN:     q.num,
			Flags:   verbs.WCFlagWithImm | verbs.WCFlagGRH,
		}, 0, 1)
	}
	q.execPSN = (q.execPSN + w.packets) & mask24
	q.done = min(q.done+w.packets, maxPSNsInFlight)
	q.mu.Unlock()
	if faults.hook(PointAck, f).Drop {
		return replyFrame{}, false
	}
	return f.reply(replyACK, 0), true
}

// refuse does what a fault hook asked for.
func (q *qp) refuse(w *inWrite, v Verdict) (replyFrame, bool) {
	if v.Status != verbs.WCSuccess {
		return q.nak(w, v.Status)
	}
	q.rollBack(w)
	return replyFrame{}, false
}

// nak ends the connection on this side and tells the requester why.
func (q *qp) nak(w *inWrite, status verbs.WCStatus) (replyFrame, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gen.Load() != w.gen {
		return replyFrame{}, false
	}
	q.toErr()
	return w.frame.reply(replyNAK, uint64(status)), true
}

// rollBack forgets a request that is to come again, and all accepted after it.
func (q *qp) rollBack(w *inWrite) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gen.Load() != w.gen {
		return
	}
	q.acceptPSN = w.frame.PSN
	for _, later := range q.queue {
		later.release()
	}
	q.queue = nil
}

type copyResult uint8

const (
	copyDone   copyResult = iota
	copyStale             // the QP left the connection, or the requester gave up
	copyDenied            // the region was closed
)

// copyAll moves the message into dst, piece by piece. The rights of QP and
// region are held over each piece and checked before it.
func (q *qp) copyAll(w *inWrite, m *mr, dst []byte) copyResult {
	faults := q.dev.faults
	if faults == nil || faults.Piece == 0 {
		for off := 0; off < len(dst); off += pieceSize {
			end := min(off+pieceSize, len(dst))
			if r := q.copyPiece(w, m, dst, uint64(off), uint64(end)); r != copyDone {
				return r
			}
		}
		return copyDone
	}
	for _, p := range faults.pieces(uint64(len(dst))) {
		if r := q.copyPiece(w, m, dst, p[0], p[1]); r != copyDone {
			return r
		}
	}
	return copyDone
}

func (q *qp) copyPiece(w *inWrite, m *mr, dst []byte, from, to uint64) copyResult {
	q.copyMu.Lock()
	defer q.copyMu.Unlock()
	if q.gen.Load() != w.gen || !w.conn.epochs.current(w.frame.Slot, w.frame.Epoch) {
		return copyStale
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.dead {
		return copyDenied
	}
	q.dev.faults.atPiece(w.frame, from)
	var at uint64 // of the SGE in the message
	for i, s := range w.frame.SGEs {
		n := uint64(s.Length)
		lo, hi := max(from, at), min(to, at+n)
		if lo < hi {
			src := w.mems[i].buf[s.Off+lo-at : s.Off+hi-at]
			copy(dst[lo:hi], src)
		}
		at += n
	}
	return copyDone
}
