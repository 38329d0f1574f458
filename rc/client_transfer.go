package rc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// transfer is one GET or PUT as the caller wants it.
type transfer struct {
	op       Op
	target   token.Target
	offset   int64
	seg      verbs.Segment
	extras   token.Extras
	need     token.Capabilities
	deadline time.Time // of the data's completion
}

func (t *transfer) size() int64 { return int64(len(t.seg.Buf)) }

// do runs a transfer: in a kept session if there is one, else in a fresh one, and
// once more in a fresh one where nothing speaks against it.
func (c *Client) do(ctx context.Context, t *transfer) (token.Final, error) {
	if err := c.check(ctx, t); err != nil {
		return token.Final{}, err
	}
	ok, trial, reason := c.ep.admit()
	if !ok {
		return token.Final{}, c.notEligible(t, reason)
	}
	if trial {
		defer c.ep.endTrial()
	}
	if err := c.slots.acquire(ctx); err != nil {
		return token.Final{}, &Error{Op: t.op, Action: ActionFail, Err: err}
	}
	defer c.slots.release()
	if t.extras.ChecksumAlgorithm = ""; c.o.Checksum {
		if caps, _ := c.ep.capabilities(); caps.Has(token.CapCRC) {
			t.extras.ChecksumAlgorithm = token.AlgorithmCRC64NVME
		}
	}
	t.deadline = time.Now().Add(c.o.Timeouts.allowance(t.size()))
	for retried := false; ; retried = true {
		f, fail, unsafe := c.try(ctx, t, retried)
		if fail == nil && unsafe == nil {
			c.ep.succeeded()
			c.counts.done(t.op, f.Bytes)
			return f, nil
		}
		if fail == nil {
			// The transfer was good, but its memory is lost to the caller.
			e := &Error{Op: t.op, Phase: PhaseFinal, Action: ActionHTTP, Err: unsafe}
			if t.op == OpPut {
				e.Action = ActionUnknown
			}
			return token.Final{}, e
		}
		err, again := c.judge(t, fail, unsafe, retried)
		if !again {
			c.counts.failed(t.op)
			return token.Final{}, err
		}
		c.counts.retried()
	}
}

// check refuses what is not eligible, asking for the endpoint's extensions if
// they are needed and unknown.
func (c *Client) check(ctx context.Context, t *transfer) error {
	reason := ""
	switch {
	case c.isClosed():
		return &Error{Op: t.op, Action: ActionHTTP, Err: ErrClosed}
	case t.seg.MR == nil:
		reason = "memory is not registered"
	case t.offset < 0:
		reason = "negative offset"
	case t.size() == 0:
		reason = "no bytes"
	case t.size() > c.MaxTransfer(t.op):
		reason = "larger than one transfer"
	case t.op == OpPut:
		reason = checkPut(PutRequest{
			UploadID: t.target.UploadID, PartNumber: t.target.PartNumber,
			IfMatch: t.extras.IfMatch, IfNoneMatch: t.extras.IfNoneMatch,
			Meta: t.extras.Meta, ContentType: t.extras.ContentType,
		})
	}
	if reason == "" && len(t.target.Encode()) > token.MaxTarget {
		reason = "name too long"
	}
	if reason != "" {
		return c.notEligible(t, reason)
	}
	if t.need == 0 {
		return nil
	}
	have, known := c.ep.capabilities()
	if !known {
		if ok, reason := c.ep.usable(); !ok {
			return c.notEligible(t, reason)
		}
		if err := c.Probe(ctx); err != nil {
			action := ActionHTTP
			if ctx.Err() != nil {
				action = ActionFail
			}
			return &Error{Op: t.op, Action: action, Err: err}
		}
		have, _ = c.ep.capabilities()
	}
	if !have.Has(t.need) {
		return c.notEligible(t, lacking(t.need, have))
	}
	return nil
}

func (c *Client) notEligible(t *transfer, reason string) *Error {
	c.ep.fellBack("not eligible")
	return &Error{Op: t.op, Action: ActionHTTP, Err: fmt.Errorf("%w: %s", ErrNotEligible, reason)}
}

// try runs the transfer in one session. unsafe is not nil when the QP could be
// neither drained nor destroyed.
func (c *Client) try(ctx context.Context, t *transfer, fresh bool) (f token.Final, fail *failure, unsafe error) {
	if port := c.ep.portContext(); port.Err() != nil {
		return f, &failure{cause: causeSuspended, err: context.Cause(port)}, nil
	}
	creds, err := c.o.Credentials(ctx)
	if err != nil {
		return f, &failure{cause: causeLocal, err: fmt.Errorf("credentials: %w", err)}, nil
	}
	if !c.o.NoKeep {
		if !fresh {
			if s := c.takeKept(creds, t.size(), t.need); s != nil {
				return c.next(ctx, s, t)
			}
		}
		if c.ep.mayKeep() {
			s, fail, unsafe := c.openKept(ctx, creds, t)
			if fail != nil || unsafe != nil {
				return f, fail, unsafe
			}
			if s != nil {
				return c.next(ctx, s, t)
			}
		}
	}
	return c.session(ctx, creds, t)
}

// session runs the transfer in a session of its own: PREPARE, READY, FINAL.
func (c *Client) session(ctx context.Context, creds token.Credentials, t *transfer) (f token.Final, fail *failure, unsafe error) {
	if c.reserve() {
		defer c.unreserve()
	}
	l, fail, unsafe := c.connect(ctx, t, creds, token.PrepareRequest{
		Op: t.op, Target: t.target, Size: t.size(), Offset: t.offset, Extras: t.extras,
	})
	if fail != nil || unsafe != nil {
		return f, fail, unsafe
	}
	ready := token.ReadyRequest{
		Session:           l.session,
		Cookie:            l.cookie,
		QPN:               l.conn.QPN(),
		ChecksumAlgorithm: t.extras.ChecksumAlgorithm,
	}
	if t.op == OpGet {
		ready.MRAddr, ready.MRRKey = t.seg.Addr(), t.seg.MR.RKey()
	}
	x := &exchange{c: c, link: l, t: t, cookie: l.cookie, path: token.PathReady, header: ready.Header()}
	if t.op == OpPut && !l.caps.Has(token.CapEP) {
		x.grace = c.ep.writeGrace()
	} else {
		x.atOnce = true
	}
	f, fail = x.run(ctx)
	if fail != nil {
		c.cancel(l)
	}
	return f, fail, l.release(c)
}

// link is one QP connected to a server's session.
type link struct {
	conn    *verbs.Conn
	peer    peer
	session string
	cookie  uint32
	caps    token.Capabilities // of the PREPARE answer
	mrAddr  uint64
	mrRKey  uint32
	keep    time.Duration
}

// release gives the QP back; the error is nil or wraps verbs.ErrUnsafe.
func (l *link) release(c *Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Timeouts.Drain)
	defer cancel()
	return exposed(l.conn.Release(ctx))
}

// connect sends PREPARE and brings a QP to RTS against the server's, with a GET's
// receive posted. If the server's GID is of another family it does so once more
// with an own GID of that family.
func (c *Client) connect(ctx context.Context, t *transfer, creds token.Credentials, r token.PrepareRequest) (*link, *failure, error) {
	gid := c.ep.ownGID()
	for switched := false; ; switched = true {
		l, theirs, fail, unsafe := c.prepare(ctx, t, creds, r, gid)
		if unsafe != nil || fail == nil || !errors.Is(fail.err, ErrGIDFamily) || switched {
			if fail == nil && unsafe == nil {
				c.ep.useGID(gid)
			}
			return l, fail, unsafe
		}
		other, ok := c.ep.gidOfFamily(familyOf(theirs))
		if !ok {
			return nil, fail, nil
		}
		gid = other
	}
}

// prepare is one PREPARE from one own GID. On failure everything is undone.
func (c *Client) prepare(ctx context.Context, t *transfer, creds token.Credentials, r token.PrepareRequest, gid verbs.GIDEntry) (l *link, theirs verbs.GID, fail *failure, unsafe error) {
	ctx, cancel := context.WithDeadlineCause(ctx, t.deadline, ErrDeadline)
	defer cancel()
	port := c.ep.portContext()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	defer context.AfterFunc(port, func() { lost(context.Cause(port)) })()
	conn, err := c.queuePair(ctx)
	if err != nil {
		fail := &failure{cause: causeLocal, err: fmt.Errorf("queue pair: %w", err)}
		if !errors.Is(context.Cause(ctx), ErrDeadline) { // for which the endpoint is not to blame
			fail = interrupted(ctx, fail)
		}
		return nil, theirs, fail, nil
	}
	l = &link{conn: conn, cookie: newCookie()}
	undo := func(f *failure) (*link, verbs.GID, *failure, error) {
		if l.session != "" {
			c.drain(l)
			c.cancel(l)
		}
		return nil, theirs, interrupted(ctx, f), l.release(c)
	}
	if r.Op == OpGet && !r.Keep {
		if err := conn.PostRecv(verbs.RecvWR{ID: uint64(l.cookie)}); err != nil {
			return undo(&failure{cause: causeLocal, err: fmt.Errorf("post receive: %w", err)})
		}
	}
	r.Token = token.Token{
		Transport: token.TransportRC,
		QPNum:     conn.QPN(),
		GID:       gid.GID,
		Port:      c.o.Port,
		LID:       c.o.LID,
	}
	r.PSN, r.Cookie = conn.PSN(), l.cookie
	a, p, err := c.control.prepare(ctx, creds, r.Header())
	l.peer = p
	if err != nil {
		return undo(&failure{cause: causeNoAnswer, err: err})
	}
	if a.status != http.StatusOK {
		return undo(&failure{cause: causeAnswer, answer: &a})
	}
	staging := r.Op
	if r.Keep {
		staging = OpPut // a kept session has its staging buffer for both directions
		if a.header.Get(token.HeaderKeep) == "" {
			staging = r.Op // an ordinary session; the caller gives it up
		}
	}
	pr, err := token.ParsePrepareResponse(a.header, staging)
	l.session = pr.Session
	if err != nil {
		return undo(&failure{cause: causeMalformed, err: fmt.Errorf("%w: %w", ErrProtocol, err)})
	}
	c.ep.prepared()
	if c.ep.lacks(t.need, pr.Capabilities) != 0 {
		return undo(&failure{cause: causeLacking, err: fmt.Errorf("%w: %s", ErrNotEligible, lacking(t.need, pr.Capabilities))})
	}
	l.caps, l.mrAddr, l.mrRKey, l.keep = pr.Capabilities, pr.MRAddr, pr.MRRKey, pr.Keep
	theirs = verbs.GID(pr.Token.GID)
	// On InfiniBand the prefix of a GID is the subnet's, not an address family.
	if c.o.LID == 0 && gid.Type != verbs.GIDInfiniBand && familyOf(theirs) != familyOf(gid.GID) {
		return undo(&failure{cause: causeConnect, err: ErrGIDFamily})
	}
	err = conn.Connect(verbs.ConnectAttr{
		DestQPN:      pr.QPN,
		RQPSN:        pr.PSN,
		DGID:         theirs,
		DLID:         pr.Token.LID,
		SGIDIndex:    gid.Index,
		MTU:          c.o.MTU,
		Port:         c.o.Port,
		TrafficClass: c.o.TrafficClass,
		SL:           c.o.SL,
		NoAccess:     r.Op == OpPut && !r.Keep,
	})
	if err != nil {
		return undo(&failure{cause: causeConnect, err: fmt.Errorf("connect queue pair: %w", err)})
	}
	return l, theirs, nil, nil
}

// interrupted turns a failure that the end of ctx brought about into that.
func interrupted(ctx context.Context, f *failure) *failure {
	if f.answer != nil || ctx.Err() == nil {
		return f
	}
	switch err := context.Cause(ctx); {
	case errors.Is(err, ErrDeadline):
		f.cause, f.err = causeDeadline, ErrDeadline
	case errors.Is(err, ErrSuspended):
		f.cause, f.err = causeSuspended, err
	default:
		f.cause, f.err = causeCaller, err
	}
	return f
}

// drain is step 1 of section 14.3: after it no packet can touch memory through
// the QP. Where that fails, release destroys the QP.
func (c *Client) drain(l *link) {
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Timeouts.Drain)
	defer cancel()
	if err := l.conn.Drain(ctx); err != nil {
		c.log.Debug("queue pair not drained", "err", err)
	}
}

// cancel is step 3: it tells the server that the session is given up. Its answer
// means nothing.
func (c *Client) cancel(l *link) {
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Timeouts.Cancel)
	defer cancel()
	h := token.CancelRequest{Session: l.session, Cookie: l.cookie}.Header()
	if _, _, err := c.control.post(ctx, l.peer, token.PathCancel, h, nil); err != nil {
		c.log.Debug("session not cancelled", "err", err)
	}
	c.counts.cancelled()
}

func newCookie() uint32 {
	var b [4]byte
	for {
		rand.Read(b[:])
		if v := binary.BigEndian.Uint32(b[:]); v != 0 {
			return v
		}
	}
}
