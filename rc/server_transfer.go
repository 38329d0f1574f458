package rc

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

const maxInt64 = math.MaxInt64

// job is one transfer of a session.
type job struct {
	principal    Principal // only while a request is answered
	op           Op
	target       token.Target
	size, offset int64
	cookie       uint32
	addr         uint64 // GET: the client's buffer
	rkey         uint32
	extras       token.Extras

	loaded int64 // GET: bytes in the staging buffer
	stored Stored
}

// limited returns ctx with the time that is allowed for size bytes; it ends too
// when Close no longer waits.
func (s *Server) limited(ctx context.Context, base time.Duration, size int64) (context.Context, context.CancelFunc) {
	d := base + time.Duration(float64(size)/float64(s.o.ExecRate)*float64(time.Second))
	ctx, cancel := context.WithTimeoutCause(ctx, d, errDataTimeout)
	ctx, abort := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.aborted, func() { abort(errShuttingDown) })
	return ctx, func() {
		stop()
		abort(nil)
		cancel()
	}
}

// gaveUp reports whether err is due to the end of ctx.
func gaveUp(ctx context.Context, err error) bool {
	var answer *S3Error
	return ctx.Err() != nil && !(errors.As(err, &answer) && answer.Status < http.StatusInternalServerError)
}

// ended returns why ctx has ended, as an answer, if that is what err is about.
func ended(ctx context.Context, err error) error {
	if !gaveUp(ctx, err) {
		return err
	}
	var answer *S3Error
	if errors.As(context.Cause(ctx), &answer) {
		return answer
	}
	return errDataTimeout // the client is gone
}

// run moves the bytes of j and, for a PUT, stores them. The caller has claimed the
// session; for a GET the data is loaded. ctx bounds the data phase.
func (s *Server) run(ctx context.Context, sess *session, j *job) (http.Header, error) {
	final := token.Final{Cookie: j.cookie}
	if j.op == OpGet {
		if err := s.send(ctx, sess, j); err != nil {
			s.count.failed.Add(1)
			return nil, err
		}
		final.Bytes = j.loaded
	} else {
		if err := s.receive(ctx, sess, j); err != nil {
			s.count.failed.Add(1)
			return nil, err
		}
		final.Bytes = j.size
	}
	data := sess.buf.mr.Bytes()[:final.Bytes]
	if j.extras.ChecksumAlgorithm == token.AlgorithmCRC64NVME {
		final.CRC64, final.HasCRC64 = token.CRC64NVME(data), true
	}
	if j.op == OpPut {
		s.mu.Lock()
		sess.state = stateCompleting
		s.mu.Unlock()
		stored, err := s.store(ctx, j, data)
		if err != nil {
			s.count.failed.Add(1)
			return nil, err
		}
		j.stored = stored
		s.count.put.Add(1)
		s.count.bytesPut.Add(uint64(final.Bytes))
	} else {
		s.count.got.Add(1)
		s.count.bytesGot.Add(uint64(final.Bytes))
	}
	final.ETag, final.VersionID = j.stored.ETag, j.stored.VersionID
	return final.Header(), nil
}

// store stores a PUT's bytes. They are here and the client may be gone already: it
// is no longer for its connection to stop that.
func (s *Server) store(ctx context.Context, j *job, data []byte) (Stored, error) {
	ctx, cancel := s.limited(context.WithoutCancel(ctx), s.o.StoreTimeout, int64(len(data)))
	defer cancel()
	stored, err := s.o.Objects.Store(ctx, j.principal, j.target, data, StoreOptions{
		Conditions:  Conditions{IfMatch: j.extras.IfMatch, IfNoneMatch: j.extras.IfNoneMatch},
		Meta:        j.extras.Meta,
		ContentType: j.extras.ContentType,
	})
	// What was given up half-way may still have happened.
	if err != nil && gaveUp(ctx, err) {
		s.log.Warn("storing was given up", "err", err)
		return Stored{}, errUnknown
	}
	return stored, err
}

// send is the data phase of a GET (section 12.6): one write of the whole range.
func (s *Server) send(ctx context.Context, sess *session, j *job) error {
	err := sess.conn.PostSend(verbs.SendWR{
		ID:         wrWrite,
		Opcode:     verbs.OpWriteWithImm,
		SGEs:       []verbs.SGE{{Addr: sess.buf.mr.Addr(), Length: uint32(j.loaded), LKey: sess.buf.mr.LKey()}},
		RemoteAddr: j.addr,
		RKey:       j.rkey,
		Imm:        j.cookie,
		Signaled:   true,
	})
	if err != nil {
		s.log.Debug("post write", "err", err)
		return errTransfer
	}
	wc, err := s.completion(ctx, sess)
	if err != nil {
		return err
	}
	if wc.ID != wrWrite || wc.Status != verbs.WCSuccess {
		s.log.Debug("rdma write to a client failed", "status", wc.Status, "receive", wc.ID == wrRecv)
		return errTransfer
	}
	return nil
}

// receive is the data phase of a PUT (section 12.5).
func (s *Server) receive(ctx context.Context, sess *session, j *job) error {
	wc, err := s.completion(ctx, sess)
	if err != nil {
		return err
	}
	switch {
	case wc.Status != verbs.WCSuccess:
		s.log.Debug("rdma receive failed", "status", wc.Status)
	case wc.ID != wrRecv || wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Flags&verbs.WCFlagWithImm == 0:
		s.log.Debug("completion is not that of a write with immediate", "opcode", wc.Opcode)
	case wc.Imm != j.cookie:
		s.log.Debug("immediate belongs to another transfer")
	case int64(wc.ByteLen) != j.size:
		s.log.Debug("write has the wrong length", "bytes", wc.ByteLen, "want", j.size)
	default:
		return nil
	}
	return errTransfer
}

// completion waits for the next completion of a session's QP.
func (s *Server) completion(ctx context.Context, sess *session) (verbs.WC, error) {
	canceled := sess.canceled
	down, _ := s.portDown()
	var grace <-chan time.Time
	for {
		select {
		case wc := <-sess.conn.Completions():
			return wc, nil
		case <-grace:
			return verbs.WC{}, errDataTimeout
		case <-ctx.Done():
			return verbs.WC{}, ended(ctx, ctx.Err())
		case <-down:
			return verbs.WC{}, errPortDown
		case <-canceled:
			canceled = nil
			timer := time.NewTimer(cancelGrace)
			defer timer.Stop()
			grace = timer.C
		}
	}
}
