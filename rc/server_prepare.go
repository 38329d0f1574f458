package rc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// qpWait is how long PREPARE waits for a QP when all are out.
const qpWait = time.Second

// Work request IDs of a session's QP.
const (
	wrWrite = 1
	wrRecv  = 2
)

// Prepare answers PREPARE (section 7).
func (s *Server) Prepare(ctx context.Context, r Request) Response {
	if !s.begin() {
		return s.answer(ctx, r, "prepare", nil, errShuttingDown)
	}
	defer s.work.Done()
	h, err := s.prepare(ctx, r)
	return s.answer(ctx, r, "prepare", h, err)
}

func (s *Server) prepare(ctx context.Context, r Request) (http.Header, error) {
	if !token.CheckProtocol(r.Header) {
		return nil, ErrUseHTTP
	}
	p, err := r.Authenticate()
	if err != nil {
		return nil, err
	}
	req, err := token.ParsePrepareRequest(r.Header)
	if err != nil {
		return nil, err
	}
	if req.Size > token.MaxSize {
		return nil, errTooLarge
	}
	ctx, cancel := s.limited(ctx, s.o.ExecTimeout, min(req.Size, s.o.MaxTransfer))
	defer cancel()
	if err := s.o.Objects.Authorize(ctx, p, req.Op, req.Target); err != nil {
		return nil, ended(ctx, err)
	}
	if !servable(req.Op, req.Target) {
		return nil, ErrUseHTTP
	}
	if req.Size > s.o.MaxTransfer {
		return nil, errTooLarge
	}
	if _, down := s.portDown(); down {
		return nil, errPortDown
	}
	sess := &session{
		own:       s.ownGID(),
		principal: p.ID,
		op:        req.Op,
		target:    req.Target,
		peer:      req.Token,
		peerPSN:   req.PSN,
		size:      req.Size,
		staged:    int64(s.staging.class(req.Size)),
		kept:      req.Keep,
		clean:     true,
		canceled:  make(chan struct{}),
		job:       job{principal: p, op: req.Op, target: req.Target, size: req.Size, offset: req.Offset, cookie: req.Cookie, extras: req.Extras},
	}
	if err := s.reserve(p.ID, sess.staged); err != nil {
		return nil, err
	}
	if err := s.create(ctx, sess); err != nil {
		s.teardown(sess)
		return nil, ended(ctx, err)
	}
	// Each request brings its own; a session knows its principal by ID.
	sess.job.principal = Principal{}
	// The answer is made before the session is public: from then on it may end
	// at any time.
	sess.id = newSessionID()
	h := s.prepareHeader(sess)
	s.mu.Lock()
	if s.closing || s.suspended {
		err := errShuttingDown
		if !s.closing {
			err = errPortDown
		}
		s.mu.Unlock()
		s.teardown(sess)
		return nil, err
	}
	sess.clean = sess.kept
	s.sessions[sess.id] = sess
	if sess.kept {
		sess.idleSince = time.Now()
		s.wait(sess, stateIdle, s.o.KeepIdle)
	} else {
		s.wait(sess, statePrepared, s.o.PrepareTimeout)
	}
	s.mu.Unlock()
	s.count.prepared.Add(1)
	return h, nil
}

// servable is the table of section 11.5.
func servable(op Op, t token.Target) bool {
	if t.Plain() {
		return true
	}
	if op == OpPut {
		return t.IsPart()
	}
	return t.VersionID != "" && t.PartNumber == 0 && t.UploadID == "" && len(t.Other) == 0
}

// create gives a session its buffer and QP and, for an ordinary GET, its data.
func (s *Server) create(ctx context.Context, sess *session) error {
	var err error
	for {
		sess.buf, err = s.staging.get(sess.principal, sess.size, sess.writable())
		if !errors.Is(err, errNoStaging) || !s.makeRoom(sess.size) {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := s.takeQP(ctx, sess); err != nil {
		return err
	}
	// A peer that leaves the number out of its token is paired in READY.
	if sess.peer.QPNum != 0 {
		if err := s.pair(sess, sess.peer.QPNum); err != nil {
			s.log.Debug("early pairing failed", "err", err)
			if sess.kept {
				return errTransfer
			}
			if err := s.renewQP(ctx, sess); err != nil {
				return err
			}
		}
	}
	if sess.op == OpGet && !sess.kept {
		return s.load(ctx, sess, &sess.job)
	}
	return nil
}

// makeRoom ends an idle session for the sake of a buffer for n bytes, unless all of
// them would not do.
func (s *Server) makeRoom(n int64) bool {
	s.mu.Lock()
	freed := s.evictable("")
	s.mu.Unlock()
	return s.staging.couldHold(n, freed) && s.evictIdle("")
}

// writable tells that the client writes into the staging buffer.
func (sess *session) writable() bool { return sess.kept || sess.op == OpPut }

// takeQP gets a QP in INIT, with the receive of a PUT posted.
func (s *Server) takeQP(ctx context.Context, sess *session) error {
	for {
		conn, err := s.getConn(ctx)
		if err == nil {
			sess.conn = conn
			break
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || !s.evictIdle("") {
			s.log.Debug("no QP for an rdma session", "err", err)
			return errSlowDown
		}
	}
	if sess.writable() {
		if err := sess.conn.PostRecv(verbs.RecvWR{ID: wrRecv}); err != nil {
			return fmt.Errorf("post receive: %w", err)
		}
	}
	return nil
}

func (s *Server) getConn(ctx context.Context) (*verbs.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, qpWait)
	defer cancel()
	return s.o.Pool.Get(ctx)
}

// renewQP replaces a QP that may have left INIT half-way.
func (s *Server) renewQP(ctx context.Context, sess *session) error {
	release, cancel := context.WithTimeout(context.Background(), teardownBudget)
	defer cancel()
	err := sess.conn.Release(release)
	sess.conn = nil
	if err != nil {
		s.quarantine(sess, err)
		return err
	}
	return s.takeQP(ctx, sess)
}

// pair takes the QP to RTS against the peer's (section 12.3). The zero token
// stands for the server's own adapter.
func (s *Server) pair(sess *session, qpn uint32) error {
	gid, lid := verbs.GID(sess.peer.GID), sess.peer.LID
	if sess.peer.IsZero() {
		gid, lid = sess.own.GID, s.o.LID
	}
	err := sess.conn.Connect(verbs.ConnectAttr{
		DestQPN:      qpn,
		RQPSN:        sess.peerPSN,
		DGID:         gid,
		DLID:         lid,
		SGIDIndex:    sess.own.Index,
		MTU:          s.o.MTU,
		Port:         s.o.Port,
		TrafficClass: s.o.TrafficClass,
		SL:           s.o.SL,
		NoAccess:     !sess.writable(),
	})
	sess.paired = err == nil
	return err
}

// load reads the range of a GET into the staging buffer.
func (s *Server) load(ctx context.Context, sess *session, j *job) error {
	if j.offset > maxInt64-j.size {
		return errRange
	}
	rng, err := s.o.Objects.OpenRange(ctx, j.principal, j.target, j.offset, j.size, Conditions{IfMatch: j.extras.IfMatch, IfNoneMatch: j.extras.IfNoneMatch})
	if err != nil {
		return err
	}
	defer rng.Reader.Close()
	if rng.Size == 0 {
		return errRange
	}
	if rng.Size < 0 || rng.Size > j.size {
		return fmt.Errorf("opened %d bytes where %d were asked for", rng.Size, j.size)
	}
	if _, err := io.ReadFull(rng.Reader, sess.buf.mr.Bytes()[:rng.Size]); err != nil {
		return fmt.Errorf("read object: %w", err)
	}
	j.loaded, j.stored = rng.Size, Stored{ETag: rng.ETag, VersionID: rng.VersionID}
	return nil
}

func (s *Server) prepareHeader(sess *session) http.Header {
	resp := token.PrepareResponse{
		Token: token.Token{
			Transport: token.TransportRC,
			QPNum:     sess.conn.QPN(),
			GID:       sess.own.GID,
			Port:      s.o.Port,
			LID:       s.o.LID,
		},
		Session: sess.id,
		PSN:     sess.conn.PSN(),
		QPN:     sess.conn.QPN(),
	}
	if sess.buf.key.remote {
		resp.MRAddr, resp.MRRKey = sess.buf.mr.Addr(), sess.buf.mr.RKey()
	}
	if sess.kept {
		resp.Keep = s.o.KeepIdle
	}
	return resp.Header()
}
