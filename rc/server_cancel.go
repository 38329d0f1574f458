package rc

import (
	"context"
	"net/http"

	"s3rdmafs/token"
)

// Cancel answers CANCEL (section 9). It also works while the server shuts down.
func (s *Server) Cancel(ctx context.Context, r Request) Response {
	err := s.cancel(r)
	h := make(http.Header)
	h.Set(token.HeaderProtocol, token.Protocol)
	return s.answer(ctx, r, "cancel", h, err)
}

func (s *Server) cancel(r Request) error {
	if !token.CheckProtocol(r.Header) {
		return notProtocol()
	}
	p, err := r.Authenticate()
	if err != nil {
		return err
	}
	req, err := token.ParseCancelRequest(r.Header)
	if err != nil {
		return err
	}
	s.mu.Lock()
	sess := s.sessions[req.Session]
	if sess == nil {
		s.mu.Unlock()
		return nil
	}
	if sess.principal != p.ID {
		s.mu.Unlock()
		return errNoSession
	}
	if !s.endWaiting(sess) {
		if !sess.isCanceled {
			sess.isCanceled = true
			close(sess.canceled)
		}
		s.mu.Unlock()
		return nil
	}
	// Nothing waits any more once the server is closing, so this is counted in time.
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	s.teardown(sess)
	return nil
}
