package rc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// sessionState is the state of section 14.2. A session that is being created is
// in no table yet.
type sessionState uint8

const (
	statePrepared     sessionState = iota // waits for READY
	stateIdle                             // kept, waits for NEXT
	stateTransferring                     // data phase
	stateCompleting                       // data verified; never preempted
	stateLingering                        // transfer over, QP still acknowledges
	stateReaping                          // out of the table
)

// session is one QP pair with its staging buffer. Fields of the first group are
// fixed once it is in the table, those of the last guarded by Server.mu; between
// claim and the next state the others belong to the request that claimed it.
type session struct {
	id        string
	principal string
	op        Op
	target    token.Target
	peer      token.Token
	peerPSN   uint32
	own       verbs.GIDEntry
	size      int64 // of the transfer; of a kept session the capacity
	staged    int64 // of the buffer, as it counts against limits
	kept      bool

	conn   *verbs.Conn
	buf    *staging
	paired bool // QP is in RTS
	clean  bool // the client has no reason to write again
	job    job  // of an ordinary session

	canceled   chan struct{} // closed by CANCEL while a transfer runs
	state      sessionState
	isCanceled bool
	generation uint64 // counts waits, so that an old timer does nothing
	timer      *time.Timer
	idleSince  time.Time
	seq        uint32
	lastCookie uint32
}

// usage is what one principal holds.
type usage struct {
	sessions int
	bytes    int64
}

// newSessionID returns 128 random bits.
func newSessionID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// reserve takes a session and bytes out of the limits, ending idle kept
// sessions where they stand in the way, unless that would not help.
func (s *Server) reserve(principal string, bytes int64) error {
	for {
		s.mu.Lock()
		u := s.usage[principal]
		if u == nil {
			u = new(usage)
		}
		ownFull := u.sessions >= s.o.SessionsPerPrincipal || u.bytes+bytes > s.o.StagingPerPrincipal
		if !ownFull && s.reserved < s.o.Sessions {
			u.sessions++
			u.bytes += bytes
			s.usage[principal] = u
			s.reserved++
			s.mu.Unlock()
			return nil
		}
		hopeless := u.bytes+bytes-s.evictable(principal) > s.o.StagingPerPrincipal
		s.mu.Unlock()
		only := ""
		if ownFull {
			only = principal
		}
		if hopeless || !s.evictIdle(only) {
			return errSlowDown
		}
	}
}

func (s *Server) unreserve(principal string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved--
	u := s.usage[principal]
	u.sessions--
	u.bytes -= bytes
	if u.sessions == 0 {
		delete(s.usage, principal)
	}
}

// evictable counts the staging bytes of what evictIdle can end. Needs mu.
func (s *Server) evictable(principal string) (bytes int64) {
	for _, sess := range s.sessions {
		if sess.evictable(principal) {
			bytes += sess.staged
		}
	}
	return bytes
}

func (sess *session) evictable(principal string) bool {
	return (sess.state == stateIdle || sess.state == stateLingering) && (principal == "" || sess.principal == principal)
}

// evictIdle ends a lingering session or else the kept session that has been idle
// for longest, of one principal or of any ("").
func (s *Server) evictIdle(principal string) bool {
	s.mu.Lock()
	var oldest *session
	for _, sess := range s.sessions {
		if !sess.evictable(principal) {
			continue
		}
		if oldest == nil || sess.state > oldest.state || sess.state == oldest.state && sess.idleSince.Before(oldest.idleSince) {
			oldest = sess
		}
	}
	if oldest != nil {
		s.endWaiting(oldest)
	}
	s.mu.Unlock()
	if oldest == nil {
		return false
	}
	s.teardown(oldest)
	return true
}

// endWaiting takes a session that no request works on out of the table; the
// caller must then tear it down. False when one does. Needs mu.
func (s *Server) endWaiting(sess *session) bool {
	if sess.state != statePrepared && sess.state != stateIdle && sess.state != stateLingering {
		return false
	}
	s.forget(sess)
	return true
}

// forget takes a session out of the table. Needs mu.
func (s *Server) forget(sess *session) {
	sess.state = stateReaping
	sess.timer.Stop()
	delete(s.sessions, sess.id)
}

// wait puts a session into a state in which it waits for a request, for d at
// most. Needs mu.
func (s *Server) wait(sess *session, state sessionState, d time.Duration) {
	sess.state = state
	sess.generation++
	generation := sess.generation
	sess.timer = time.AfterFunc(d, func() { s.expire(sess, generation) })
}

func (s *Server) expire(sess *session, generation uint64) {
	s.mu.Lock()
	// Close has ended all that waits, and counts no more work.
	if sess.generation != generation || !s.endWaiting(sess) {
		s.mu.Unlock()
		return
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	s.teardown(sess)
}

// find returns the session of an id, or errNoSession if it is gone or another
// principal's. Needs mu.
func (s *Server) find(id, principal string) (*session, error) {
	sess := s.sessions[id]
	if sess == nil || sess.principal != principal || sess.state == stateLingering {
		return nil, errNoSession
	}
	return sess, nil
}

// claim starts a data phase. Needs mu.
func (s *Server) claim(sess *session) error {
	if s.suspended {
		return errPortDown
	}
	if s.o.Transfers > 0 && s.transfers >= s.o.Transfers {
		return errSlowDown
	}
	s.transfers++
	sess.timer.Stop()
	sess.state = stateTransferring
	return nil
}

// release counts a transfer that ended.
func (s *Server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transfers--
}

// teardown ends what a session holds, in the order of section 14.2: QP, then
// registered memory, then limits. The session is not in the table (any more), and
// nobody else uses it.
func (s *Server) teardown(sess *session) {
	if sess.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), teardownBudget)
		defer cancel()
		if err := sess.conn.Release(ctx); err != nil {
			s.quarantine(sess, err)
		}
	}
	if sess.buf != nil {
		if err := s.staging.put(sess.buf, sess.clean); err != nil {
			s.log.Error("staging buffer stays registered", "err", err)
		}
	}
	s.unreserve(sess.principal, sess.staged)
}

// quarantine gives the buffer of a session up, whose QP could not be stopped.
func (s *Server) quarantine(sess *session, err error) {
	s.log.Error("staging buffer stays registered: its QP could not be stopped", "err", err)
	if sess.buf == nil {
		return
	}
	s.staging.quarantine(sess.buf)
	sess.buf = nil
}

// succeed ends a session after its last transfer, a good one, without delaying the
// answer.
func (s *Server) succeed(sess *session, op Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess.clean = true
	if op == OpPut && !s.closing {
		sess.idleSince = time.Now()
		s.wait(sess, stateLingering, s.o.Linger)
		return
	}
	s.forget(sess)
	s.work.Go(func() { s.teardown(sess) })
}

// fail ends a session after a failed transfer. When it returns, no packet of the
// session is on its way any more.
func (s *Server) fail(sess *session, err error) {
	s.log.Debug("rdma transfer failed", sess.logAttrs(), "err", err)
	s.mu.Lock()
	s.forget(sess)
	s.mu.Unlock()
	sess.clean = false
	s.teardown(sess)
}

func (sess *session) logAttrs() slog.Attr {
	return slog.Group("session", "op", sess.op, "bucket", sess.target.Bucket, "key", sess.target.Key, "bytes", sess.size, "kept", sess.kept)
}
