package rctest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"time"
)

const (
	maxSize = 1<<31 - 1
	maxPSN  = 1<<24 - 1
)

func (p *Peer) prepare(w http.ResponseWriter, r *http.Request, who string) {
	s, refusal := p.parsePrepare(r)
	if refusal != "" {
		p.refuse(w, refusal)
		return
	}
	s.who, s.credential = who, credential(r)
	if refusal := p.admit(s); refusal != "" {
		p.refuse(w, refusal)
		return
	}
	if err := s.open(); err != nil {
		s.close()
		p.answer(w, end(http.StatusInternalServerError, "InternalError"))
		return
	}
	if p.o.Profile.EarlyPairing {
		if err := s.pair(s.theirs.qpn); err != nil {
			s.close()
			p.answer(w, end(http.StatusInternalServerError, "InternalError"))
			return
		}
	}
	var id [16]byte
	rand.Read(id[:])
	s.id = hex.EncodeToString(id[:])
	h := w.Header()
	p.describe(s, h)
	if d := p.o.Profile.PrepareTime; d > 0 {
		s.expires = time.Now().Add(d)
	}
	p.mu.Lock()
	p.sessions[s.id] = s
	p.mu.Unlock()
	p.succeed(w, http.StatusOK)
}

// parsePrepare makes a session of a request that is well-formed and within the
// limits of one transfer.
func (p *Peer) parsePrepare(r *http.Request) (*session, Situation) {
	pr := &p.o.Profile
	f := &fields{h: r.Header}
	theirs, terr := pr.decodeToken(r.Header.Get("X-Amz-Rdma-Token"))
	psn := uint32(f.hex("X-Amz-Rdma-Psn", pr.PSN, maxPSN))
	cookie := uint32(f.hex("X-Amz-Rdma-Cookie", pr.Cookie, math.MaxUint32))
	size := f.decimal("X-Amz-Rdma-Size", pr.DecimalDigits)
	var offset int64
	if pr.OffsetRequired || f.has("X-Amz-Rdma-Offset") {
		offset = f.decimal("X-Amz-Rdma-Offset", pr.DecimalDigits)
	}
	op := r.Header.Get("X-Amz-Rdma-Op")
	if op == "get" && pr.AnyCaseOp {
		op = "GET"
	}
	if op != "GET" && op != "PUT" {
		f.fail("X-Amz-Rdma-Op")
	}
	t, err := pr.target(r.Header.Get("X-Amz-Rdma-Target"))
	if terr != nil || err != nil || f.bad != "" || psn == 0 || cookie == 0 && !pr.ZeroCookie {
		return nil, Malformed
	}
	switch {
	case size == 0:
		return nil, SizeZero
	case size > maxSize:
		return nil, SizeOver2G
	case p.refuses(EndOver2G) && offset > maxSize-size:
		p.violation("prepare: range ends beyond 2^31-1")
		return nil, EndOver2G
	}
	if t.query != "" {
		switch pr.queryRule(op, t.query) {
		case QueryDropped:
			p.violation("prepare: a query this server drops")
		case QueryRefused:
			return nil, BadQuery
		case QueryUnsupported:
			return nil, UnsupportedQuery
		case QueryServed:
			t.name += "?" + t.query
		}
	}
	return &session{
		peer: p, op: op, bucket: t.bucket, name: t.name, cookie: cookie, psn: psn, theirs: theirs, size: size, offset: offset,
	}, ""
}

// admit checks object and limits; for a GET it cuts the range and, unless that
// is left to READY, reads it.
func (p *Peer) admit(s *session) Situation {
	pr := &p.o.Profile
	h := &p.o.Hooks
	switch {
	case p.isStopping() && p.refuses(ShuttingDown):
		return ShuttingDown
	case h.Deny != nil && h.Deny(s.op, s.name) && p.refuses(Denied):
		return Denied
	case s.bucket == MissingBucket && p.refuses(NoBucket) && !(s.op == "PUT" && pr.MissingBucketInReady):
		return NoBucket
	case h.Unservable != nil && h.Unservable(s.name) && p.refuses(NotServable):
		return NotServable
	case pr.StagingPerSession != 0 && s.size > pr.StagingPerSession:
		return SizeOverBuffer
	}
	if s.op == "GET" {
		if wrong := s.load(); wrong != "" {
			return wrong
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	own := 0
	for _, other := range p.sessions {
		if other.who == s.who {
			own++
		}
	}
	if pr.Sessions != 0 && len(p.sessions) >= pr.Sessions || pr.PerPrincipal != 0 && own >= pr.PerPrincipal {
		return Limit
	}
	return ""
}

func (p *Peer) isStopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopping
}

// describe writes the headers of section 7.4.
func (p *Peer) describe(s *session, h http.Header) {
	pr := &p.o.Profile
	h.Set("X-Amz-Rdma-Protocol", proto)
	h.Set("X-Amz-Rdma-Session", s.id)
	h.Set("X-Amz-Rdma-Psn", p.digits(fmt.Sprintf("%06x", s.ownPSN)))
	own := endpoint{qpn: s.qp.Num(), gid: s.ownGID.GID, port: p.o.Port}
	if pr.LID {
		own.lid = p.o.LID
	}
	if pr.StagingToken == StagingTokenAlways || pr.StagingToken == StagingTokenPut && s.op == "PUT" {
		own.rkey, own.addr, own.length = s.mr.RKey(), s.mr.Addr(), uint64(s.size)
	}
	h.Set("X-Amz-Rdma-Reply", "200:"+own.encode())
	if pr.RepeatToken {
		h.Set("X-Amz-Rdma-Token", own.encode())
	}
	if !pr.NoQPN {
		h.Set("X-Amz-Rdma-Qpn", fmt.Sprintf("%x", s.qp.Num()))
	}
	if s.op == "PUT" || pr.StagingOnGet {
		h.Set("X-Amz-Rdma-Mr-Addr", fmt.Sprintf("%x", s.mr.Addr()))
		h.Set("X-Amz-Rdma-Mr-Rkey", fmt.Sprintf("%x", s.mr.RKey()))
	}
	if p.o.Hooks.PrepareHeader != nil {
		p.o.Hooks.PrepareHeader(h)
	}
}
