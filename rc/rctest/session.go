package rctest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"s3rdmafs/verbs"
)

// sessionState is that of a session in the peer's map.
type sessionState uint8

const (
	statePrepared sessionState = iota
	stateRunning
	stateDead // failed, and not forgotten yet
)

// session is one transfer of a peer. state is guarded by Peer.mu; while it is
// running the rest belongs to the request that claimed it.
type session struct {
	peer       *Peer
	id         string
	op         string
	bucket     string
	name       string
	who        string // as the server compares it
	credential string
	cookie     uint32
	psn        uint32 // the client's
	theirs     endpoint
	size       int64
	offset     int64
	data       []byte // of a GET, or stored by a PUT
	etag       string
	expires    time.Time
	state      sessionState

	ownPSN uint32
	ownGID verbs.GIDEntry
	ch     verbs.CompChannel
	cq     verbs.CQ
	qp     verbs.QP
	mem    *verbs.Memory
	mr     verbs.MR
	paired bool
	once   sync.Once
}

// load finds the object of a GET, cuts the range, and reads it.
func (s *session) load() Situation {
	o, ok := s.peer.Get(s.name)
	n := int64(len(o.Data))
	switch {
	case !ok:
		return NoKey
	case s.offset >= n:
		return RangeStart
	case s.size > n-s.offset:
		if s.peer.refuses(RangeEnd) {
			return RangeEnd
		}
		s.size = n - s.offset
	}
	s.data, s.etag = o.Data[s.offset:s.offset+s.size], o.ETag
	return ""
}

// open makes QP and staging; the QP is in INIT.
func (s *session) open() (err error) {
	p := s.peer
	pr := &p.o.Profile
	s.ownGID = pr.GID.choose(p.o.GIDs, s.theirs.gid)
	if s.theirs.zero {
		s.theirs.gid, s.theirs.lid = s.ownGID.GID, p.o.LID
	}
	if s.mem, err = verbs.NewMemory("rctest", int(s.size)); err != nil {
		return err
	}
	remote := verbs.Access(0)
	if pr.RemoteRead {
		remote |= verbs.AccessRemoteRead
	}
	if s.op == "PUT" || pr.RemoteRead {
		remote |= verbs.AccessRemoteWrite
	}
	if s.op == "GET" {
		copy(s.mem.Bytes(), s.data)
	}
	if s.mr, err = p.pd.RegMR(s.mem, 0, int(s.size), remote|verbs.AccessLocalWrite); err != nil {
		return err
	}
	if s.ch, err = p.o.Device.CreateCompChannel(); err != nil {
		return err
	}
	if s.cq, err = p.o.Device.CreateCQ(pr.CQE, s.ch); err != nil {
		return err
	}
	s.qp, err = p.pd.CreateQP(verbs.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: pr.SendWR, MaxRecvWR: pr.RecvWR, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	var b [4]byte
	rand.Read(b[:])
	s.ownPSN = max(1, binary.BigEndian.Uint32(b[:])&maxPSN)
	if pr.PSNIsQPN {
		s.ownPSN = s.qp.Num()
	}
	return s.toInit(remote)
}

func (s *session) toInit(remote verbs.Access) error {
	if err := s.qp.Modify(verbs.QPAttr{State: verbs.StateInit, Port: s.peer.o.Port, AccessFlags: remote}, verbs.MaskInit); err != nil {
		return err
	}
	if s.op == "PUT" && !s.peer.o.Profile.ReceiveInReady {
		return s.qp.PostRecv(verbs.RecvWR{ID: 1})
	}
	return nil
}

// rearm brings the QP back to INIT after the client did not answer.
func (s *session) rearm() error {
	if err := s.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err != nil {
		return err
	}
	s.paired = false
	return s.toInit(verbs.AccessRemoteWrite)
}

// pair takes the QP to RTS.
func (s *session) pair(qpn uint32) error {
	if s.paired {
		return nil
	}
	o := &s.peer.o
	var lid uint16
	if o.Profile.LID {
		lid = s.theirs.lid
	}
	err := s.qp.Modify(verbs.QPAttr{
		State:           verbs.StateRTR,
		PathMTU:         o.MTU,
		DestQPN:         qpn,
		RQPSN:           s.psn,
		MaxDestRdAtomic: 1,
		MinRNRTimer:     12,
		AH: verbs.AHAttr{
			DGID: s.theirs.gid, SGIDIndex: s.ownGID.Index, DLID: lid,
			HopLimit: 64, IsGlobal: true, PortNum: o.Port,
		},
	}, verbs.MaskRTR)
	if err != nil {
		return err
	}
	err = s.qp.Modify(verbs.QPAttr{
		State: verbs.StateRTS, SQPSN: s.ownPSN, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1,
	}, verbs.MaskRTS)
	if err != nil {
		return err
	}
	if s.op == "PUT" && o.Profile.ReceiveInReady {
		sge := verbs.SGE{Addr: s.mr.Addr(), Length: uint32(s.size), LKey: s.mr.LKey()}
		if err := s.qp.PostRecv(verbs.RecvWR{ID: 1, SGEs: []verbs.SGE{sge}}); err != nil {
			return err
		}
	}
	s.paired = true
	return nil
}

// errBusy is a write that the client did not acknowledge.
var errBusy = errors.New("the client does not answer")

// run is the data phase; status 200 means good.
func (s *session) run(q readyRequest) Answer {
	p := s.peer
	answers := p.o.Profile.Answers
	good := Answer{Status: http.StatusOK}
	if q.qpn == 0 {
		return good // a dry run
	}
	if s.op == "GET" && p.o.Profile.ReadInReady {
		if wrong := s.load(); wrong != "" {
			return answers[wrong]
		}
		copy(s.mem.Bytes(), s.data)
	}
	if err := s.pair(q.qpn); err != nil {
		return answers[ConnectFailed]
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.o.Exec)
	defer cancel()
	var err error
	if s.op == "GET" {
		err = s.write(ctx, q.addr, q.rkey)
	} else {
		err = s.receive(ctx)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return answers[Timeout]
	case errors.Is(err, errBusy):
		return answers[PeerBusy]
	case err != nil:
		return answers[WireError]
	case s.op == "GET":
		return good
	}
	if s.bucket == MissingBucket && p.refuses(NoBucket) {
		return answers[StoreFailed]
	}
	if store := p.o.Hooks.Store; store != nil {
		if status, code := store(); status != 0 {
			if a, ok := answers[StoreFailed]; ok {
				return a
			}
			return end(status, code)
		}
	}
	s.data = append([]byte(nil), s.mr.Bytes()...)
	s.etag = etagOf(s.data)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.objects[s.name] = Object{Data: s.data, ETag: s.etag}
	p.stored++
	return good
}

// write sends a GET's data.
func (s *session) write(ctx context.Context, addr uint64, rkey uint32) error {
	pr := &s.peer.o.Profile
	h := &s.peer.o.Hooks
	if h.BeforeWrite != nil {
		h.BeforeWrite()
	}
	if h.NoWrite {
		return nil
	}
	imm := s.cookie
	if h.Immediate != nil {
		imm = h.Immediate(imm)
	}
	if h.Remote != nil {
		addr, rkey = h.Remote(addr, rkey)
	}
	send := func(op verbs.Opcode, off, n int) error {
		wr := verbs.SendWR{ID: 2, Opcode: op, RemoteAddr: addr + uint64(off), RKey: rkey, Imm: imm, Signaled: true}
		if n > 0 {
			wr.SGEs = []verbs.SGE{{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}}
		}
		if err := s.qp.PostSend(wr); err != nil {
			return err
		}
		_, err := s.completion(ctx)
		return err
	}
	off, size := 0, int(s.size)
	for pr.StreamChunk != 0 && size-off > pr.StreamTail {
		n := min(pr.StreamChunk, size-off)
		if err := send(verbs.OpWrite, off, n); err != nil {
			return err
		}
		off += n
	}
	return send(verbs.OpWriteWithImm, off, size-off)
}

// receive waits for a PUT's data and checks it.
func (s *session) receive(ctx context.Context) error {
	if h := &s.peer.o.Hooks; h.Intrude != nil {
		wr := verbs.SendWR{ID: 3, Opcode: verbs.OpWrite, Signaled: true, SGEs: []verbs.SGE{{Addr: s.mr.Addr(), Length: uint32(s.size), LKey: s.mr.LKey()}}}
		wr.RemoteAddr, wr.RKey = h.Intrude()
		if err := s.qp.PostSend(wr); err != nil {
			return err
		}
	}
	wc, err := s.completion(ctx)
	if err != nil {
		return err
	}
	if wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Flags&verbs.WCFlagWithImm == 0 || wc.Imm != s.cookie || int64(wc.ByteLen) != s.size {
		s.peer.violation("put: wrong completion")
		return fmt.Errorf("wrong completion")
	}
	return nil
}

// completion waits for one completion with status success.
func (s *session) completion(ctx context.Context) (verbs.WC, error) {
	var wc [1]verbs.WC
	for {
		if err := s.cq.ReqNotify(); err != nil {
			return verbs.WC{}, err
		}
		n, err := s.cq.Poll(wc[:])
		if err != nil {
			return verbs.WC{}, err
		}
		if n == 1 {
			switch wc[0].Status {
			case verbs.WCSuccess:
				return wc[0], nil
			case verbs.WCRetryExcErr, verbs.WCRNRRetryExcErr:
				return verbs.WC{}, errBusy
			}
			return verbs.WC{}, fmt.Errorf("completion %s", wc[0].Status)
		}
		if _, err := s.ch.Wait(ctx); err != nil {
			return verbs.WC{}, err
		}
	}
}

// close tears down in the order of section 14.2.
func (s *session) close() {
	s.once.Do(func() {
		if s.qp != nil {
			s.qp.Close()
		}
		if s.cq != nil {
			s.cq.Close()
		}
		if s.ch != nil {
			s.ch.Close()
		}
		if s.mr != nil {
			s.mr.Close()
		}
		if s.mem != nil {
			s.mem.Close()
		}
	})
}
