package rc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

const (
	// completionLag is how long a completion may come after FINAL (section 12.6).
	completionLag = 2 * time.Second
	// ackLag is how long a write's acknowledgement may come after an error answer.
	ackLag = 100 * time.Millisecond
	// settleTime is how long an answer is waited for after a PUT's write failed: it
	// can tell that nothing was stored.
	settleTime = time.Second
)

// exchange is the part of a transfer from READY, or NEXT, to FINAL: completion
// and answer are awaited concurrently.
type exchange struct {
	c      *Client
	link   *link
	t      *transfer
	cookie uint32
	path   string
	header http.Header
	kept   bool
	atOnce bool          // PUT: the server is in RTS already
	grace  time.Duration // PUT: else wait so long after the request was written

	posted    bool // PUT: the write
	postedAt  time.Time
	sent      bool // the request may have left
	completed bool
	rejected  bool // PUT: the write, by the peer's QP
	final     *token.Final
}

type reply struct {
	answer answer
	wire   wire
	err    error
}

// run returns FINAL, or a failure after steps 1 and 2 of section 14.3: the
// QP is drained and the connection of an unanswered request closed.
func (x *exchange) run(ctx context.Context) (token.Final, *failure) {
	reqCtx, closeConn := context.WithCancel(context.WithoutCancel(ctx))
	defer closeConn()
	wrote := make(chan struct{}, 1)
	replies := make(chan reply, 1)
	if x.t.op == OpPut && x.atOnce {
		if fail := x.write(); fail != nil {
			x.c.drain(x.link)
			return token.Final{}, fail
		}
	}
	go func() {
		a, w, err := x.c.control.post(reqCtx, x.link.peer, x.path, x.header, func() {
			select {
			case wrote <- struct{}{}:
			default:
			}
		})
		replies <- reply{a, w, err}
	}()
	x.sent = true // until the reply tells otherwise

	fail, answered := x.wait(ctx, wrote, replies)
	if fail == nil {
		return *x.final, nil
	}
	if x.posted && !x.completed && fail.answer != nil && !sessionCode(fail.answer.code) {
		x.awaitAck()
	}
	x.c.drain(x.link)
	x.lastWord()
	if !answered {
		// Without the data a PUT cannot succeed any more, so an answer that is on its way
		// settles what the completion left open.
		if x.posted && fail.cause == causeCompletion && !x.rejected {
			select {
			case r := <-replies:
				answered = true
				x.settle(fail, r)
			case <-time.After(settleTime):
			}
		}
		closeConn()
		if !answered {
			r := <-replies
			x.sent = r.wire.sent
		}
	}
	fail.kept = x.kept
	fail.moved = x.completed
	if x.t.op == OpPut && x.posted && x.sent {
		fail.maybeStored = x.maybeStored(fail)
	}
	if x.completed && (fail.phase == PhaseReady || fail.cause == causeCaller || fail.cause == causeDeadline || fail.cause == causeSuspended) {
		fail.phase = PhaseFinal
	}
	return token.Final{}, fail
}

// awaitAck gives the acknowledgement of a write the time to come in that its
// server's answer overtook: it tells whether the answer is about storing.
func (x *exchange) awaitAck() {
	select {
	case wc := <-x.link.conn.Completions():
		x.note(wc)
	case <-time.After(ackLag):
	}
}

// note takes the completion of a write whose transfer has failed otherwise.
func (x *exchange) note(wc verbs.WC) {
	x.completed = x.completed || wc.Status == verbs.WCSuccess && wc.ID == uint64(x.cookie)
	x.rejected = x.rejected || rejects(wc.Status)
}

// lastWord looks, after the drain, for the good completion of a PUT's write that
// came at the same time as what ended the transfer.
func (x *exchange) lastWord() {
	for x.posted && !x.completed {
		select {
		case wc := <-x.link.conn.Completions():
			x.note(wc)
		default:
			return
		}
	}
}

// maybeStored reports whether a PUT whose data and request may both have arrived
// can have been stored despite the failure.
func (x *exchange) maybeStored(fail *failure) bool {
	if x.rejected {
		return false
	}
	if fail.cause != causeAnswer {
		return true
	}
	// The servers' own errors exclude it, those of a proxy in between do not. The
	// write need not have completed: its acknowledgement may have been lost.
	a := fail.answer
	switch {
	case a.status == http.StatusGatewayTimeout:
		return true
	case a.header.Get(token.HeaderProtocol) != "", protocolCode(a.code):
		return false
	case x.kept, x.link.caps.Has(token.CapKeep):
		return true // such a server has the echo on all its answers
	}
	return a.code == ""
}

// settle lets an error answer decide after a failed write.
func (x *exchange) settle(fail *failure, r reply) {
	x.sent = r.wire.sent
	if r.err == nil && r.answer.status >= 400 {
		fail.cause, fail.answer = causeAnswer, &r.answer
	}
}

// wait runs until both the completion and FINAL are good, or something is not.
func (x *exchange) wait(ctx context.Context, wrote <-chan struct{}, replies <-chan reply) (fail *failure, answered bool) {
	port := x.c.ep.portContext()
	portLost := port.Done()
	deadline := time.NewTimer(time.Until(x.t.deadline))
	defer deadline.Stop()
	var grace, lag <-chan time.Time
	for !x.completed || x.final == nil {
		if x.completed && x.t.op == OpPut {
			portLost = nil // the answer comes another way
		}
		select {
		case <-wrote:
			if x.t.op == OpPut && !x.posted && grace == nil {
				grace = time.After(x.grace)
			}
		case <-grace:
			grace = nil
			if fail := x.write(); fail != nil {
				return fail, answered
			}
		case wc := <-x.link.conn.Completions():
			if fail := x.complete(wc); fail != nil {
				return fail, answered
			}
			if x.t.op == OpPut {
				deadline.Reset(x.c.o.Timeouts.Final)
			}
		case r := <-replies:
			answered = true
			x.sent = r.wire.sent
			if fail := x.answer(r); fail != nil {
				return fail, true
			}
			lag = time.After(completionLag)
		case <-lag:
			return &failure{phase: PhaseData, cause: causeMalformed,
				err: fmt.Errorf("%w: FINAL without completion", ErrProtocol)}, answered
		case <-deadline.C:
			return &failure{phase: PhaseData, cause: causeDeadline, err: ErrDeadline}, answered
		case <-ctx.Done():
			return &failure{phase: PhaseData, cause: causeCaller, err: context.Cause(ctx)}, answered
		case <-portLost:
			return &failure{phase: PhaseData, cause: causeSuspended, err: context.Cause(port)}, answered
		}
	}
	if x.final.HasCRC64 && token.CRC64NVME(x.t.seg.Buf[:x.final.Bytes]) != x.final.CRC64 {
		return &failure{phase: PhaseFinal, cause: causeChecksum, err: ErrChecksum}, answered
	}
	return nil, answered
}

// write posts a PUT's one work request.
func (x *exchange) write() *failure {
	x.postedAt = time.Now()
	err := x.link.conn.PostSend(verbs.SendWR{
		ID:         uint64(x.cookie),
		Opcode:     verbs.OpWriteWithImm,
		SGEs:       []verbs.SGE{x.t.seg.SGE()},
		RemoteAddr: x.link.mrAddr,
		RKey:       x.link.mrRKey,
		Imm:        x.cookie,
		Signaled:   true,
	})
	if err != nil {
		return &failure{phase: PhaseData, cause: causeLocal, err: fmt.Errorf("post write: %w", err)}
	}
	x.posted = true
	return nil
}

// rejects reports whether a status is that of a write that the peer's QP refused,
// so that the peer has not all the data.
func rejects(s verbs.WCStatus) bool {
	return s == verbs.WCRemAccessErr || s == verbs.WCRemInvReqErr || s == verbs.WCRemOpErr
}

// complete judges a completion (sections 12.5 and 12.6).
func (x *exchange) complete(wc verbs.WC) *failure {
	bad := func(err error) *failure {
		return &failure{phase: PhaseData, cause: causeCompletion, err: err}
	}
	if wc.Status != verbs.WCSuccess {
		if wc.Status == verbs.WCRetryExcErr && !x.atOnce && x.t.op == OpPut {
			x.c.ep.writeRetriesExceeded()
		}
		x.rejected = x.posted && rejects(wc.Status)
		return bad(fmt.Errorf("%w: %s", ErrCompletion, wc.Status))
	}
	if x.completed || wc.ID != uint64(x.cookie) {
		x.c.counts.mismatch()
		return bad(ErrCookie)
	}
	switch x.t.op {
	case OpGet:
		switch {
		case wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Flags&verbs.WCFlagWithImm == 0:
			return bad(fmt.Errorf("%w: completion without immediate", ErrProtocol))
		case wc.Imm != x.cookie:
			x.c.counts.mismatch()
			return bad(ErrCookie)
		case int64(wc.ByteLen) > x.t.size():
			return bad(fmt.Errorf("%w: more bytes than asked for", ErrProtocol))
		}
	case OpPut:
		if wc.Opcode != verbs.WCRDMAWrite {
			return bad(fmt.Errorf("%w: completion of another work request", ErrProtocol))
		}
		if !x.atOnce {
			x.c.ep.wrote(x.t.size(), time.Since(x.postedAt))
		}
	}
	x.completed = true
	return nil
}

// answer judges the answer to READY or NEXT.
func (x *exchange) answer(r reply) *failure {
	if r.err != nil {
		return &failure{phase: PhaseReady, cause: causeNoAnswer, err: r.err}
	}
	a := r.answer
	if a.status < 200 || a.status > 299 {
		return &failure{phase: PhaseReady, cause: causeAnswer, answer: &a}
	}
	bad := func(err error) *failure {
		return &failure{phase: PhaseFinal, cause: causeMalformed, err: fmt.Errorf("%w: %w", ErrProtocol, err)}
	}
	f, err := token.ParseFinal(a.header)
	switch {
	case a.status != http.StatusOK && !(a.status == http.StatusNoContent && x.t.op == OpPut):
		return bad(fmt.Errorf("status %d", a.status))
	case err != nil:
		return bad(err)
	case f.Cookie != x.cookie:
		x.c.counts.mismatch()
		return bad(ErrCookie)
	case f.Bytes > x.t.size():
		return bad(errors.New("more bytes than asked for"))
	case x.t.op == OpPut && f.Bytes != x.t.size():
		return bad(errors.New("fewer bytes stored than sent"))
	case x.t.op == OpPut && !x.posted:
		return bad(errors.New("success before the data was sent"))
	}
	x.final = &f
	return nil
}
