package rc

import (
	"context"
	"crypto/subtle"
	"net/http"

	"s3rdmafs/token"
)

// Ready answers READY with FINAL (section 8). It returns when the transfer has
// ended. A ctx that ends earlier, because the client closed its connection, ends
// the data phase, but not the storing of an object.
func (s *Server) Ready(ctx context.Context, r Request) Response {
	if !s.begin() {
		return s.answer(ctx, r, "ready", nil, errShuttingDown)
	}
	defer s.work.Done()
	h, err := s.ready(ctx, r)
	return s.answer(ctx, r, "ready", h, err)
}

func (s *Server) ready(ctx context.Context, r Request) (http.Header, error) {
	if !token.CheckProtocol(r.Header) {
		return nil, notProtocol()
	}
	p, err := r.Authenticate()
	if err != nil {
		return nil, err
	}
	req, err := token.ParseReadyRequest(r.Header)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	sess, err := s.find(req.Session, p.ID)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if sess.kept {
		return nil, errConflict
	}
	if err := s.authorizeReady(ctx, p, sess); err != nil {
		s.mu.Lock()
		ended := sess.state == statePrepared && s.endWaiting(sess)
		s.mu.Unlock()
		if ended {
			s.teardown(sess)
		}
		return nil, err
	}
	if err := s.claimReady(sess, req); err != nil {
		return nil, err
	}
	ctx, cancel := s.limited(ctx, s.o.ExecTimeout, sess.size)
	defer cancel()
	j := &sess.job
	j.principal, j.addr, j.rkey = p, req.MRAddr, req.MRRKey
	if req.ChecksumAlgorithm != "" {
		j.extras.ChecksumAlgorithm = req.ChecksumAlgorithm
	}
	h, err := s.connectAndRun(ctx, sess, req.QPN)
	j.principal = Principal{}
	s.release()
	if err != nil {
		s.fail(sess, err)
		return nil, err
	}
	s.succeed(sess, sess.op)
	return h, nil
}

func (s *Server) authorizeReady(ctx context.Context, p Principal, sess *session) error {
	ctx, cancel := s.limited(ctx, s.o.ExecTimeout, 0)
	defer cancel()
	if err := s.o.Objects.Authorize(ctx, p, sess.op, sess.target); err != nil {
		return ended(ctx, err)
	}
	return nil
}

func (s *Server) connectAndRun(ctx context.Context, sess *session, qpn uint32) (http.Header, error) {
	if !sess.paired {
		if err := s.pair(sess, qpn); err != nil {
			s.log.Debug("pairing failed", "err", err)
			s.count.failed.Add(1)
			return nil, errTransfer
		}
	}
	return s.run(ctx, sess, &sess.job)
}

// claimReady makes the checks whose failure leaves the session as it is.
func (s *Server) claimReady(sess *session, req token.ReadyRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case sess.state == stateReaping || sess.state == stateLingering:
		return errNoSession
	case subtle.ConstantTimeEq(int32(sess.job.cookie), int32(req.Cookie)) == 0:
		return errCookie
	case sess.state != statePrepared:
		return errConflict
	case sess.op == OpGet && (req.MRAddr == 0 || req.MRRKey == 0):
		return badRequest(token.HeaderMRAddr + ": GET without destination")
	case sess.peer.QPNum != 0 && sess.peer.QPNum != req.QPN:
		return badRequest(token.HeaderQPN + ": differs from the token of PREPARE")
	}
	return s.claim(sess)
}
