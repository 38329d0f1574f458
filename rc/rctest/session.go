package rctest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/http"

	"s3rdmafs/verbs"
)

// session is one transfer of a peer. READY and CANCEL take it out of the peer's
// map, so it is used by one goroutine at a time.
type session struct {
	peer   *Peer
	id     string
	op     string
	name   string
	who    string
	cookie uint32
	psn    uint32 // the client's
	theirs end
	size   int64
	data   []byte // of a GET, or stored by a PUT
	etag   string

	ownPSN uint32
	ch     verbs.CompChannel
	cq     verbs.CQ
	qp     verbs.QP
	mem    *verbs.Memory
	mr     verbs.MR
	paired bool
	dead   bool
}

// open makes QP and staging; the QP is in INIT.
func (s *session) open() (err error) {
	p := s.peer
	var b [4]byte
	rand.Read(b[:])
	s.ownPSN = max(1, binary.BigEndian.Uint32(b[:])&0xffffff)
	if s.mem, err = verbs.NewMemory("rctest", int(s.size)); err != nil {
		return err
	}
	access := verbs.AccessLocalWrite
	if s.op == "PUT" {
		access |= verbs.AccessRemoteWrite
	} else {
		copy(s.mem.Bytes(), s.data)
	}
	if s.mr, err = p.pd.RegMR(s.mem, 0, int(s.size), access); err != nil {
		return err
	}
	if s.ch, err = p.o.Device.CreateCompChannel(); err != nil {
		return err
	}
	if s.cq, err = p.o.Device.CreateCQ(64, s.ch); err != nil {
		return err
	}
	s.qp, err = p.pd.CreateQP(verbs.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	rights := verbs.Access(0)
	if s.op == "PUT" {
		rights = verbs.AccessRemoteWrite
	}
	if err := s.qp.Modify(verbs.QPAttr{State: verbs.StateInit, Port: p.o.Port, AccessFlags: rights}, verbs.MaskInit); err != nil {
		return err
	}
	if s.op == "PUT" && !p.o.Profile.ReceiveInReady {
		return s.qp.PostRecv(verbs.RecvWR{ID: 1})
	}
	return nil
}

// pair takes the QP to RTS.
func (s *session) pair(qpn uint32) error {
	if s.paired {
		return nil
	}
	err := s.qp.Modify(verbs.QPAttr{
		State:           verbs.StateRTR,
		PathMTU:         verbs.MTU4096,
		DestQPN:         qpn,
		RQPSN:           s.psn,
		MaxDestRdAtomic: 1,
		MinRNRTimer:     12,
		AH: verbs.AHAttr{
			DGID: s.theirs.gid, SGIDIndex: s.peer.o.GIDIndex, DLID: s.theirs.lid,
			HopLimit: 64, IsGlobal: true, PortNum: s.peer.o.Port,
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
	if s.op == "PUT" && s.peer.o.Profile.ReceiveInReady {
		if err := s.qp.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
			return err
		}
	}
	s.paired = true
	return nil
}

// run is the data phase; status 200 means good.
func (s *session) run(qpn uint32, addr uint64, rkey uint32) (status int, code string) {
	pr := s.peer.o.Profile
	if err := s.pair(qpn); err != nil {
		return pr.WireError, "RdmaTransferFailed"
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.peer.o.Exec)
	defer cancel()
	var err error
	if s.op == "GET" {
		err = s.write(ctx, addr, rkey)
	} else {
		err = s.receive(ctx)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return pr.Timeout, "RequestTimeout"
	case err != nil:
		return pr.WireError, "RdmaTransferFailed"
	case s.op == "GET":
		return http.StatusOK, ""
	}
	if store := s.peer.o.Hooks.Store; store != nil {
		if status, code := store(); status != 0 {
			return status, code
		}
	}
	s.data = append([]byte(nil), s.mr.Bytes()...)
	s.etag = etagOf(s.data)
	p := s.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.objects[s.name] = Object{Data: s.data, ETag: s.etag}
	p.stored++
	return http.StatusOK, ""
}

// write sends a GET's data.
func (s *session) write(ctx context.Context, addr uint64, rkey uint32) error {
	h := s.peer.o.Hooks
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
	wr := verbs.SendWR{ID: 2, Opcode: verbs.OpWriteWithImm, RemoteAddr: addr, RKey: rkey, Imm: imm, Signaled: true}
	chunk := s.peer.o.Profile.StreamChunk
	if chunk == 0 {
		wr.SGEs = []verbs.SGE{{Addr: s.mr.Addr(), Length: uint32(s.size), LKey: s.mr.LKey()}}
		if err := s.qp.PostSend(wr); err != nil {
			return err
		}
		_, err := s.completion(ctx)
		return err
	}
	for off := 0; off < int(s.size); off += chunk {
		n := min(chunk, int(s.size)-off)
		err := s.qp.PostSend(verbs.SendWR{
			ID: 3, Opcode: verbs.OpWrite, Signaled: true,
			SGEs:       []verbs.SGE{{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}},
			RemoteAddr: addr + uint64(off), RKey: rkey,
		})
		if err != nil {
			return err
		}
		if _, err := s.completion(ctx); err != nil {
			return err
		}
	}
	if err := s.qp.PostSend(wr); err != nil {
		return err
	}
	_, err := s.completion(ctx)
	return err
}

// receive waits for a PUT's data and checks it.
func (s *session) receive(ctx context.Context) error {
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
			if wc[0].Status != verbs.WCSuccess {
				return verbs.WC{}, fmt.Errorf("completion %s", wc[0].Status)
			}
			return wc[0], nil
		}
		if _, err := s.ch.Wait(ctx); err != nil {
			return verbs.WC{}, err
		}
	}
}

// close tears down in the order of section 14.2.
func (s *session) close() {
	if s.dead {
		return
	}
	s.dead = true
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
}
