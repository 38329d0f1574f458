package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"s3rdmafs/verbs"
)

const protocol = "hipobj-rc-v2"

// Session is one transfer with a QP, CQ and region of its own.
type Session struct {
	c      *Client
	op     string
	size   int
	cookie uint32
	psn    uint32

	ID     string
	qpn    uint32 // the server's
	gid    verbs.GID
	lid    uint16
	theirs uint32 // PSN
	addr   uint64 // staging
	rkey   uint32

	// ByteLen is that of the completion of a GET's receive.
	ByteLen int

	ch  verbs.CompChannel
	cq  verbs.CQ
	qp  verbs.QP
	mem *verbs.Memory
	mr  verbs.MR
}

// Open makes QP and region; the QP is in INIT.
func (c *Client) Open(op string, size int) (*Session, error) {
	s := &Session{c: c, op: op, size: size}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Session) open() (err error) {
	o := &s.c.o
	var b [8]byte
	rand.Read(b[:])
	s.psn = max(1, binary.BigEndian.Uint32(b[:])&0xffffff)
	s.cookie = max(1, binary.BigEndian.Uint32(b[4:]))
	n := s.size
	if o.Profile.Buffer != 0 {
		n = o.Profile.Buffer
	}
	if s.mem, err = verbs.NewMemory("client", n); err != nil {
		return err
	}
	if s.mr, err = o.PD.RegMR(s.mem, 0, n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err != nil {
		return err
	}
	if s.ch, err = o.Device.CreateCompChannel(); err != nil {
		return err
	}
	if s.cq, err = o.Device.CreateCQ(16, s.ch); err != nil {
		return err
	}
	s.qp, err = o.PD.CreateQP(verbs.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	return s.qp.Modify(verbs.QPAttr{
		State: verbs.StateInit, Port: 1, AccessFlags: verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
	}, verbs.MaskInit)
}

// Close destroys the QP and then frees the rest. It may be called again.
func (s *Session) Close() error {
	var errs []error
	if s.qp != nil {
		errs = append(errs, s.qp.Close())
	}
	if s.cq != nil {
		errs = append(errs, s.cq.Close())
	}
	if s.ch != nil {
		errs = append(errs, s.ch.Close())
	}
	if s.mr != nil {
		errs = append(errs, s.mr.Close())
	}
	if s.mem != nil {
		errs = append(errs, s.mem.Close())
	}
	s.qp, s.cq, s.ch, s.mr, s.mem = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// Adopt takes over id and cookie of another session, as a principal who learned them.
func (s *Session) Adopt(other *Session) { s.ID, s.cookie = other.ID, other.cookie }

// Op is GET or PUT.
func (s *Session) Op() string { return s.op }

// Bytes is the registered region.
func (s *Session) Bytes() []byte { return s.mr.Bytes() }

// Token is the own end.
func (s *Session) Token() string {
	b := []byte{1}
	b = binary.LittleEndian.AppendUint32(b, s.qp.Num())
	b = append(b, s.c.o.GID.GID[:]...)
	b = append(b, make([]byte, 4+8+8)...)
	return hex.EncodeToString(append(b, 1, 0, 0))
}

// Header of PREPARE.
func (s *Session) Header(target string, offset int64) http.Header {
	pr := &s.c.o.Profile
	h := make(http.Header)
	h.Set("X-Amz-Rdma-Protocol", protocol)
	h.Set("X-Amz-Rdma-Token", s.Token())
	h.Set("X-Amz-Rdma-Psn", fmt.Sprintf("%06x", s.psn))
	h.Set("X-Amz-Rdma-Cookie", fmt.Sprintf("%08x", s.cookie))
	h.Set("X-Amz-Rdma-Op", s.op)
	h.Set("X-Amz-Rdma-Target", target)
	h.Set("X-Amz-Rdma-Size", strconv.Itoa(s.size))
	if offset != 0 || !pr.OmitZeroOffset {
		h.Set("X-Amz-Rdma-Offset", strconv.FormatInt(offset, 10))
	}
	if pr.BufferInPrepare {
		h.Set("X-Amz-Rdma-Qpn", fmt.Sprintf("%x", s.qp.Num()))
		h.Set("X-Amz-Rdma-Mr-Addr", fmt.Sprintf("%x", s.mr.Addr()))
		h.Set("X-Amz-Rdma-Mr-Rkey", fmt.Sprintf("%x", s.mr.RKey()))
	}
	return h
}

var (
	sessionID = regexp.MustCompile(`^[0-9a-fA-F]{32}$`)
	psnDigits = regexp.MustCompile(`^[0-9a-fA-F]{6}$`)
	cookie8   = regexp.MustCompile(`^[0-9a-fA-F]{8}$`)
	checksum  = regexp.MustCompile(`^CRC64NVME [A-Za-z0-9+/]{10}[AEIMQUYcgkosw048]=$`)
)

// Prepare sends PREPARE and checks the answer as section 7.5 says.
func (s *Session) Prepare(ctx context.Context, target string, offset int64) error {
	h, err := s.c.Do(ctx, "prepare", s.Header(target, offset))
	if err != nil {
		return err
	}
	if s.ID = h.Get("X-Amz-Rdma-Session"); !sessionID.MatchString(s.ID) {
		return rejected("session %q", s.ID)
	}
	if !strings.EqualFold(h.Get("X-Amz-Rdma-Protocol"), protocol) {
		return rejected("no echo")
	}
	digits, ok := strings.CutPrefix(h.Get("X-Amz-Rdma-Reply"), "200:")
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) != 44 || b[0] != 1 {
		return rejected("reply %q", h.Get("X-Amz-Rdma-Reply"))
	}
	s.qpn = binary.LittleEndian.Uint32(b[1:])
	s.gid = verbs.GID(b[5:21])
	s.lid = binary.LittleEndian.Uint16(b[42:])
	if s.gid.IsZero() {
		return rejected("no GID")
	}
	psn := h.Get("X-Amz-Rdma-Psn")
	if !psnDigits.MatchString(psn) {
		return rejected("PSN %q", psn)
	}
	v, _ := strconv.ParseUint(psn, 16, 32)
	s.theirs = uint32(v)
	if qpn := h.Get("X-Amz-Rdma-Qpn"); qpn != "" || s.c.o.Profile.NeedQPN {
		v, err := strconv.ParseUint(qpn, 16, 32)
		if err != nil || uint32(v) != s.qpn {
			return rejected("QP number %q", qpn)
		}
	}
	if s.op == "PUT" {
		addr, aerr := strconv.ParseUint(h.Get("X-Amz-Rdma-Mr-Addr"), 16, 64)
		rkey, kerr := strconv.ParseUint(h.Get("X-Amz-Rdma-Mr-Rkey"), 16, 32)
		if aerr != nil || kerr != nil || addr == 0 || rkey == 0 {
			return rejected("no staging buffer")
		}
		s.addr, s.rkey = addr, uint32(rkey)
	}
	return nil
}

// Connect takes the QP to RTS against the server's.
func (s *Session) Connect() error {
	pr := &s.c.o.Profile
	err := s.qp.Modify(verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: pr.MTU, DestQPN: s.qpn, RQPSN: s.theirs, MaxDestRdAtomic: 1, MinRNRTimer: 12,
		AH: verbs.AHAttr{DGID: s.gid, SGIDIndex: s.c.o.GID.Index, HopLimit: pr.HopLimit, IsGlobal: true, PortNum: 1},
	}, verbs.MaskRTR)
	if err != nil {
		return err
	}
	return s.qp.Modify(verbs.QPAttr{
		State: verbs.StateRTS, SQPSN: s.psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1,
	}, verbs.MaskRTS)
}

// Receive posts a GET's receive, with one SGE over the destination.
func (s *Session) Receive() error {
	return s.qp.PostRecv(verbs.RecvWR{ID: 1, SGEs: []verbs.SGE{{Addr: s.mr.Addr(), Length: uint32(len(s.mr.Bytes())), LKey: s.mr.LKey()}}})
}

// Write posts a PUT's write.
func (s *Session) Write() error {
	n := min(s.size, len(s.mr.Bytes()))
	return s.qp.PostSend(verbs.SendWR{
		ID: 2, Opcode: verbs.OpWriteWithImm, Imm: s.cookie, Signaled: true, RemoteAddr: s.addr, RKey: s.rkey,
		SGEs: []verbs.SGE{{Addr: s.mr.Addr(), Length: uint32(n), LKey: s.mr.LKey()}},
	})
}

// ReadyHeader is that of READY.
func (s *Session) ReadyHeader() http.Header {
	pr := &s.c.o.Profile
	h := make(http.Header)
	h.Set("X-Amz-Rdma-Protocol", protocol)
	h.Set("X-Amz-Rdma-Session", s.ID)
	h.Set("X-Amz-Rdma-Cookie", fmt.Sprintf("%08x", s.cookie))
	h.Set("X-Amz-Rdma-Qpn", fmt.Sprintf("%0*x", max(1, pr.QPNDigits), s.qp.Num()))
	var addr, rkey uint64
	if s.op == "GET" || pr.BufferOnPut {
		addr, rkey = s.mr.Addr(), uint64(s.mr.RKey())
	}
	h.Set("X-Amz-Rdma-Mr-Addr", fmt.Sprintf("%x", addr))
	h.Set("X-Amz-Rdma-Mr-Rkey", fmt.Sprintf("%x", rkey))
	return h
}

// Final is what FINAL says.
type Final struct {
	Bytes   int64
	ETag    string // as sent
	Version string
}

// Ready sends READY and checks FINAL as section 8.3 says.
func (s *Session) Ready(ctx context.Context) (Final, error) {
	h, err := s.c.Do(ctx, "ready", s.ReadyHeader())
	if err != nil {
		return Final{}, err
	}
	if !strings.EqualFold(h.Get("X-Amz-Rdma-Protocol"), protocol) {
		return Final{}, rejected("FINAL: no echo")
	}
	echo := h.Get("X-Amz-Rdma-Cookie")
	v, _ := strconv.ParseUint(echo, 16, 32)
	if !cookie8.MatchString(echo) || uint32(v) != s.cookie {
		return Final{}, rejected("FINAL: cookie %q", echo)
	}
	n, err := strconv.ParseInt(h.Get("X-Amz-Rdma-Bytes-Transferred"), 10, 64)
	if err != nil || n > int64(s.size) || n < int64(s.size) && s.c.o.Profile.ExactLength {
		return Final{}, rejected("FINAL: %q bytes of %d", h.Get("X-Amz-Rdma-Bytes-Transferred"), s.size)
	}
	if sum := h.Get("X-Amz-Rdma-Checksum"); sum != "" && !checksum.MatchString(sum) {
		return Final{}, rejected("FINAL: checksum %q", sum)
	}
	return Final{Bytes: n, ETag: h.Get("X-Amz-Rdma-Etag"), Version: h.Get("X-Amz-Rdma-Version-Id")}, nil
}

// Cancel sends CANCEL.
func (s *Session) Cancel(ctx context.Context) error {
	h := make(http.Header)
	h.Set("X-Amz-Rdma-Protocol", protocol)
	h.Set("X-Amz-Rdma-Session", s.ID)
	if s.c.o.Profile.CancelCookie {
		h.Set("X-Amz-Rdma-Cookie", fmt.Sprintf("%08x", s.cookie))
	}
	_, err := s.c.Do(ctx, "cancel", h)
	return err
}

// Completion waits for the transfer's completion and judges it.
func (s *Session) Completion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.c.o.Deadline)
	defer cancel()
	for {
		if err := s.cq.ReqNotify(); err != nil {
			return err
		}
		var wc [1]verbs.WC
		n, err := s.cq.Poll(wc[:])
		if err != nil {
			return err
		}
		if n == 0 {
			if _, err := s.ch.Wait(ctx); err != nil {
				return fmt.Errorf("no completion: %w", err)
			}
			continue
		}
		s.ByteLen = int(wc[0].ByteLen)
		switch {
		case wc[0].Status != verbs.WCSuccess:
			return fmt.Errorf("%w: %s", ErrCompletion, wc[0].Status)
		case s.op == "PUT":
			return nil
		case wc[0].Opcode != verbs.WCRecvRDMAWithImm || wc[0].Flags&verbs.WCFlagWithImm == 0 || wc[0].Imm != s.cookie:
			return fmt.Errorf("%w: not the cookie's", ErrCompletion)
		case int(wc[0].ByteLen) > s.size || int(wc[0].ByteLen) < s.size && s.c.o.Profile.ExactLength:
			return fmt.Errorf("%w: %d bytes of %d", ErrCompletion, wc[0].ByteLen, s.size)
		}
		return nil
	}
}

// ErrCompletion is a completion that ends the transfer.
var ErrCompletion = errors.New("completion rejected")
