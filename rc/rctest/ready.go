package rctest

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// readyRequest is a READY that is well-formed.
type readyRequest struct {
	cookie uint32
	qpn    uint32 // 0 when absent
	addr   uint64
	rkey   uint32
	buffer bool // address and key were given
}

func (p *Peer) parseReady(r *http.Request) (readyRequest, bool) {
	pr := &p.o.Profile
	f := &fields{h: r.Header}
	var q readyRequest
	if len(r.Header.Get("X-Amz-Rdma-Session")) != 32 {
		return q, false
	}
	q.cookie = uint32(f.hex("X-Amz-Rdma-Cookie", pr.Cookie, math.MaxUint32))
	if f.has("X-Amz-Rdma-Qpn") {
		q.qpn = uint32(f.hex("X-Amz-Rdma-Qpn", pr.QPN, math.MaxUint32))
	}
	if q.buffer = f.has("X-Amz-Rdma-Mr-Addr") && f.has("X-Amz-Rdma-Mr-Rkey"); q.buffer {
		q.addr = f.hex("X-Amz-Rdma-Mr-Addr", Digits{1, 16}, math.MaxUint64)
		q.rkey = uint32(f.hex("X-Amz-Rdma-Mr-Rkey", Digits{1, 16}, math.MaxUint32))
	}
	return q, f.bad == ""
}

func (p *Peer) ready(w http.ResponseWriter, r *http.Request, who string) {
	pr := &p.o.Profile
	if pr.Capabilities != "" {
		w.Header().Set("X-Amz-Rdma-Capabilities", pr.Capabilities)
	}
	q, ok := p.parseReady(r)
	if !ok {
		p.refuse(w, Malformed)
		return
	}
	s, wrong := p.claim(r, who, &q)
	if wrong != "" {
		if s != nil {
			s.close()
		}
		p.refuse(w, wrong)
		return
	}
	if !enter(p.readies, r) {
		p.finish(s, Answer{Ends: true})
		return
	}
	defer leave(p.readies)
	if p.o.Hooks.Ready != nil {
		p.o.Hooks.Ready()
	}
	if a := s.run(q); a.Status != http.StatusOK {
		p.finish(s, a)
		p.answer(w, a)
		return
	}
	if p.o.Hooks.BeforeFinal != nil && p.o.Hooks.BeforeFinal() {
		p.finish(s, Answer{Ends: true})
		panic(http.ErrAbortHandler)
	}
	p.final(s, w.Header())
	p.finish(s, Answer{Status: http.StatusOK})
	p.succeed(w, http.StatusOK)
}

// claim starts the data phase of a session, or tells what is wrong with the
// request. A session that it returns with an error has ended.
func (p *Peer) claim(r *http.Request, who string, q *readyRequest) (*session, Situation) {
	pr := &p.o.Profile
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[r.Header.Get("X-Amz-Rdma-Session")]
	if s == nil {
		return nil, UnknownSession
	}
	if s.credential != credential(r) {
		p.violations = append(p.violations, "other credentials than those of PREPARE")
	}
	wrong := Situation("")
	switch {
	case s.who != who:
		wrong = ForeignReady
	case s.state != statePrepared:
		wrong = SecondReady
	case s.cookie != q.cookie:
		wrong = OtherCookie
	case q.qpn == 0 && !pr.DryRun:
		wrong = NoQPN
	case !q.buffer && (s.op == "GET" || pr.BufferOnPut):
		wrong = NoBuffer
	case s.op == "GET" && (q.addr == 0 || q.rkey == 0):
		if !pr.TokenDefault || s.theirs.addr == 0 || s.theirs.rkey == 0 {
			wrong = ZeroBuffer
			break
		}
		q.addr, q.rkey = s.theirs.addr, s.theirs.rkey
	}
	if wrong != "" {
		if a := pr.Answers[wrong]; a.Ends && s.state == statePrepared {
			delete(p.sessions, s.id)
			return s, wrong
		}
		return nil, wrong
	}
	if q.qpn != s.theirs.qpn && !s.theirs.zero {
		p.violations = append(p.violations, "READY's QP number is not the token's")
	}
	if s.op == "PUT" && (q.addr != 0 || q.rkey != 0) {
		p.violations = append(p.violations, "READY of a PUT hands out a key")
	}
	s.state = stateRunning
	return s, ""
}

// finish ends a session after its data phase, unless the server does not.
func (p *Peer) finish(s *session, a Answer) {
	p.mu.Lock()
	switch {
	case a.Rearms && s.rearm() == nil:
		s.state = statePrepared
		p.mu.Unlock()
		return
	case a.Status >= 400 && p.o.Profile.DeadEntries:
		s.state = stateDead
	default:
		delete(p.sessions, s.id)
	}
	p.mu.Unlock()
	s.close()
}

// reap ends sessions whose READY did not come in time.
func (p *Peer) reap() {
	p.mu.Lock()
	var late []*session
	for id, s := range p.sessions {
		if s.state == statePrepared && !s.expires.IsZero() && time.Now().After(s.expires) {
			late = append(late, s)
			delete(p.sessions, id)
		}
	}
	p.mu.Unlock()
	for _, s := range late {
		s.close()
	}
}

// final writes the headers of section 8.3.
func (p *Peer) final(s *session, h http.Header) {
	pr := &p.o.Profile
	h.Set("X-Amz-Rdma-Protocol", proto)
	h.Set("X-Amz-Rdma-Cookie", p.digits(fmt.Sprintf("%08x", s.cookie)))
	h.Set("X-Amz-Rdma-Bytes-Transferred", strconv.FormatInt(s.size, 10))
	if s.op == "GET" && pr.ETagOnGet || s.op == "PUT" && pr.ETagOnPut {
		h.Set("X-Amz-Rdma-Etag", s.etag)
		if pr.S3ETag {
			h.Set("ETag", s.etag)
		}
	}
	if pr.Version && p.o.Version != "" {
		h.Set("X-Amz-Rdma-Version-Id", p.o.Version)
	}
	if pr.Checksum != "" {
		sum := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, crc(s.data)))
		if pr.Checksum == "X-Amz-Rdma-Checksum" {
			sum = "CRC64NVME " + sum
		}
		h.Set(pr.Checksum, sum)
	}
	if p.o.Hooks.FinalHeader != nil {
		p.o.Hooks.FinalHeader(h)
	}
}

func (p *Peer) cancel(w http.ResponseWriter, r *http.Request, who string) {
	if p.o.Hooks.Cancel != nil {
		p.o.Hooks.Cancel()
	}
	p.mu.Lock()
	s := p.sessions[r.Header.Get("X-Amz-Rdma-Session")]
	answer := Canceled
	switch {
	case s == nil:
		answer = CancelUnknown
	case s.who != who:
		s, answer = nil, ForeignCancel
	case s.state == stateRunning:
		s = nil // its READY ends by itself
	default:
		delete(p.sessions, s.id)
	}
	p.mu.Unlock()
	if s != nil {
		s.close()
	}
	p.refuse(w, answer)
}
