package rc

import (
	"context"
	"net/http"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// Next answers NEXT, one transfer of a kept session (doc/PROTOCOL.md, section 5).
// What Ready says of ctx holds here too.
func (s *Server) Next(ctx context.Context, r Request) Response {
	if !s.begin() {
		return s.answer(ctx, r, "next", nil, errShuttingDown)
	}
	defer s.work.Done()
	h, err := s.next(ctx, r)
	return s.answer(ctx, r, "next", h, err)
}

func (s *Server) next(ctx context.Context, r Request) (http.Header, error) {
	if !token.CheckProtocol(r.Header) {
		return nil, notProtocol()
	}
	p, err := r.Authenticate()
	if err != nil {
		return nil, err
	}
	req, err := token.ParseNextRequest(r.Header)
	if err != nil {
		return nil, err
	}
	sess, last, err := s.claimNext(p, req)
	if err != nil {
		return nil, err
	}
	j := &job{
		principal: p, op: req.Op, target: req.Target, size: req.Size, offset: req.Offset,
		cookie: req.Cookie, addr: req.MRAddr, rkey: req.MRRKey, extras: req.Extras,
	}
	ctx, cancel := s.limited(ctx, s.o.ExecTimeout, min(j.size, sess.size))
	defer cancel()
	h, err := s.nextTransfer(ctx, sess, j, last)
	s.release()
	if err != nil {
		s.fail(sess, err)
		return nil, err
	}
	// The object is stored: not being able to go on ends the session, but is no
	// reason to call the transfer failed.
	goOn := true
	if req.Op == OpPut {
		if err := sess.conn.PostRecv(verbs.RecvWR{ID: wrRecv}); err != nil {
			s.log.Warn("post receive of a kept session", "err", err)
			goOn = false
		}
	}
	if !goOn || !s.rest(sess) {
		s.succeed(sess, req.Op)
	}
	return h, nil
}

// rest puts a kept session back to idle; false if it is to end.
func (s *Server) rest(sess *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess.isCanceled || s.closing || s.suspended {
		return false
	}
	sess.idleSince = time.Now()
	s.wait(sess, stateIdle, s.o.KeepIdle)
	return true
}

// claimNext makes the checks whose failure leaves the session as it is. It
// returns the cookie of the transfer before.
func (s *Server) claimNext(p Principal, req token.NextRequest) (*session, uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, err := s.find(req.Session, p.ID)
	if err != nil {
		return nil, 0, err
	}
	switch {
	case !sess.kept:
		return nil, 0, errNoSession
	case sess.state != stateIdle:
		return nil, 0, errConflict
	case uint64(req.Seq) != uint64(sess.seq)+1:
		return nil, 0, errSequence
	}
	if err := s.claim(sess); err != nil {
		return nil, 0, err
	}
	last := sess.lastCookie
	sess.seq, sess.lastCookie = req.Seq, req.Cookie
	return sess, last, nil
}

func (s *Server) nextTransfer(ctx context.Context, sess *session, j *job, lastCookie uint32) (http.Header, error) {
	if j.size > sess.size {
		return nil, errTooLarge
	}
	if j.cookie == lastCookie {
		return nil, badRequest(token.HeaderCookie + ": that of the transfer before")
	}
	if err := s.o.Objects.Authorize(ctx, j.principal, j.op, j.target); err != nil {
		return nil, ended(ctx, err)
	}
	if !servable(j.op, j.target) {
		return nil, ErrUseHTTP
	}
	if j.op == OpGet {
		if err := s.load(ctx, sess, j); err != nil {
			return nil, ended(ctx, err)
		}
	}
	return s.run(ctx, sess, j)
}
