package rc

import "s3rdmafs/verbs"

// Suspend is called when the port can carry no transfers: data phases that run
// end at once, sessions that wait are given up, and requests for new ones are
// answered with 503 until Resume. Objects whose bytes have arrived are still stored.
func (s *Server) Suspend(reason string) {
	s.log.Warn("RDMA sessions refused: " + reason)
	s.mu.Lock()
	if !s.suspended {
		s.suspended = true
		close(s.down)
	}
	s.mu.Unlock()
	s.endAllWaiting()
}

// Resume takes sessions again.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended {
		s.suspended = false
		s.down = make(chan struct{})
		s.log.Info("RDMA sessions taken again")
	}
}

// SetGID changes the own address of sessions made from now on, after the port's GID
// table changed. Sessions that wait are given up, unless nothing changed.
func (s *Server) SetGID(index int, gid verbs.GID) {
	s.mu.Lock()
	own := verbs.GIDEntry{Index: index, GID: gid}
	changed := s.own != own
	s.own = own
	s.mu.Unlock()
	if changed {
		s.log.Info("own GID changed", "gid_index", index, "gid", gid)
		s.endAllWaiting()
	}
}

// endAllWaiting gives up the sessions that no request works on.
func (s *Server) endAllWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	for _, sess := range s.sessions {
		if s.endWaiting(sess) {
			s.work.Go(func() { s.teardown(sess) })
		}
	}
}

// portDown returns a channel that is closed when the port goes out of use, and
// whether it is so now.
func (s *Server) portDown() (down <-chan struct{}, suspended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down, s.suspended
}

func (s *Server) ownGID() verbs.GIDEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}
