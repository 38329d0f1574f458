package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"s3rdmafs/verbs"
)

// Frames of the socket protocol. The socket keeps message boundaries
// (SOCK_SEQPACKET), so a frame has no length field; numbers are little-endian.
const (
	frameHello  = 1
	frameWrite  = 2
	frameForget = 3
	frameReply  = 4
)

const (
	protocolMagic   = 0x316d6873 // "shm1"
	helloSize       = 4 + 4 + 16
	writeHeaderSize = 48
	writeSGESize    = 24
	forgetSize      = 12
	replySize       = 32
	maxFrameSize    = writeHeaderSize + maxSGE*writeSGESize
	maxFrameFDs     = maxSGE
)

const flagImm = 1

var errFrame = errors.New("shm: malformed frame")

// helloFrame opens a connection. The descriptor of the requester's epoch page
// comes with it.
type helloFrame struct {
	GID verbs.GID
}

func (h helloFrame) append(b []byte) []byte {
	b = append(b, frameHello, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, protocolMagic)
	return append(b, h.GID[:]...)
}

func parseHello(b []byte) (helloFrame, error) {
	if len(b) != helloSize || b[0] != frameHello || binary.LittleEndian.Uint32(b[4:]) != protocolMagic {
		return helloFrame{}, fmt.Errorf("%w: hello of %d bytes", errFrame, len(b))
	}
	return helloFrame{GID: verbs.GID(b[8:24])}, nil
}

// frameSGE is a piece of source memory. FD counts the attached descriptors
// from 1; 0 means that the peer has the memory already.
type frameSGE struct {
	Mem    uint64
	Off    uint64
	Length uint32
	FD     uint32
}

// writeFrame asks the responder to carry out one RDMA WRITE.
type writeFrame struct {
	HasImm     bool
	MTU        verbs.MTU
	SrcQPN     uint32
	DstQPN     uint32
	PSN        uint32
	Slot       uint32
	Epoch      uint64
	RemoteAddr uint64
	RKey       uint32
	Imm        uint32
	SGEs       []frameSGE
}

// length is the number of bytes the WRITE carries.
func (w *writeFrame) length() uint64 {
	var n uint64
	for _, s := range w.SGEs {
		n += uint64(s.Length)
	}
	return n
}

func (w *writeFrame) append(b []byte) []byte {
	var flags byte
	if w.HasImm {
		flags = flagImm
	}
	le := binary.LittleEndian
	b = append(b, frameWrite, flags, byte(w.MTU), byte(len(w.SGEs)))
	b = le.AppendUint32(b, w.SrcQPN)
	b = le.AppendUint32(b, w.DstQPN)
	b = le.AppendUint32(b, w.PSN)
	b = le.AppendUint32(b, w.Slot)
	b = le.AppendUint32(b, w.RKey)
	b = le.AppendUint64(b, w.Epoch)
	b = le.AppendUint64(b, w.RemoteAddr)
	b = le.AppendUint32(b, w.Imm)
	b = le.AppendUint32(b, 0)
	for _, s := range w.SGEs {
		b = le.AppendUint64(b, s.Mem)
		b = le.AppendUint64(b, s.Off)
		b = le.AppendUint32(b, s.Length)
		b = le.AppendUint32(b, s.FD)
	}
	return b
}

// parseWrite decodes a WRITE that came with nfds descriptors. Every attached
// descriptor must be used.
func parseWrite(b []byte, nfds int) (*writeFrame, error) {
	if len(b) < writeHeaderSize || b[0] != frameWrite {
		return nil, fmt.Errorf("%w: write of %d bytes", errFrame, len(b))
	}
	nsge := int(b[3])
	if nsge > maxSGE || nfds > maxFrameFDs || len(b) != writeHeaderSize+nsge*writeSGESize {
		return nil, fmt.Errorf("%w: write of %d bytes with %d SGEs", errFrame, len(b), nsge)
	}
	le := binary.LittleEndian
	w := &writeFrame{
		HasImm:     b[1]&flagImm != 0,
		MTU:        verbs.MTU(b[2]),
		SrcQPN:     le.Uint32(b[4:]),
		DstQPN:     le.Uint32(b[8:]),
		PSN:        le.Uint32(b[12:]),
		Slot:       le.Uint32(b[16:]),
		RKey:       le.Uint32(b[20:]),
		Epoch:      le.Uint64(b[24:]),
		RemoteAddr: le.Uint64(b[32:]),
		Imm:        le.Uint32(b[40:]),
	}
	switch {
	case b[1]&^flagImm != 0, le.Uint32(b[44:]) != 0:
		return nil, fmt.Errorf("%w: unknown flag", errFrame)
	case w.MTU < verbs.MTU256 || w.MTU > verbs.MTU4096:
		return nil, fmt.Errorf("%w: MTU %d", errFrame, w.MTU)
	case w.SrcQPN > mask24 || w.DstQPN > mask24 || w.PSN > mask24:
		return nil, fmt.Errorf("%w: number over 24 bits", errFrame)
	case w.Slot >= maxQP:
		return nil, fmt.Errorf("%w: slot %d", errFrame, w.Slot)
	}
	var used [maxFrameFDs]bool
	nused := 0
	w.SGEs = make([]frameSGE, nsge)
	for i := range w.SGEs {
		p := b[writeHeaderSize+i*writeSGESize:]
		s := frameSGE{Mem: le.Uint64(p), Off: le.Uint64(p[8:]), Length: le.Uint32(p[16:]), FD: le.Uint32(p[20:])}
		if s.Length == 0 {
			return nil, fmt.Errorf("%w: empty SGE", errFrame)
		}
		if s.FD != 0 {
			if int64(s.FD) > int64(nfds) || used[s.FD-1] {
				return nil, fmt.Errorf("%w: descriptor %d of %d", errFrame, s.FD, nfds)
			}
			used[s.FD-1] = true
			nused++
		}
		w.SGEs[i] = s
	}
	if nused != nfds {
		return nil, fmt.Errorf("%w: %d descriptors, %d used", errFrame, nfds, nused)
	}
	if w.length() > maxMsgSize {
		return nil, fmt.Errorf("%w: message of %d bytes", errFrame, w.length())
	}
	return w, nil
}

// forgetFrame tells the responder that no region of that memory is left.
type forgetFrame struct {
	Mem uint64
}

func (f forgetFrame) append(b []byte) []byte {
	b = append(b, frameForget, 0, 0, 0)
	return binary.LittleEndian.AppendUint64(b, f.Mem)
}

func parseForget(b []byte) (forgetFrame, error) {
	if len(b) != forgetSize || b[0] != frameForget {
		return forgetFrame{}, fmt.Errorf("%w: forget of %d bytes", errFrame, len(b))
	}
	return forgetFrame{Mem: binary.LittleEndian.Uint64(b[4:])}, nil
}

type replyKind uint8

const (
	// replyACK acknowledges the message at PSN and all before it.
	replyACK replyKind = 1 + iota
	// replyNAK ends the message at PSN with the WCStatus in Code.
	replyNAK
	// replyRNR asks to try again after the RNR timer in Code.
	replyRNR
	// replyProgress says that the message at PSN is being carried out.
	replyProgress
	// replyNeedMem asks to send again with the descriptor of memory Code.
	replyNeedMem
)

// replyFrame answers a writeFrame; QPN and Epoch are those of the requester.
type replyFrame struct {
	Kind  replyKind
	QPN   uint32
	PSN   uint32
	Epoch uint64
	Code  uint64
}

func (r replyFrame) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, frameReply, byte(r.Kind), 0, 0)
	b = le.AppendUint32(b, r.QPN)
	b = le.AppendUint32(b, r.PSN)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, r.Epoch)
	return le.AppendUint64(b, r.Code)
}

func parseReply(b []byte) (replyFrame, error) {
	if len(b) != replySize || b[0] != frameReply {
		return replyFrame{}, fmt.Errorf("%w: reply of %d bytes", errFrame, len(b))
	}
	le := binary.LittleEndian
	r := replyFrame{Kind: replyKind(b[1]), QPN: le.Uint32(b[4:]), PSN: le.Uint32(b[8:]), Epoch: le.Uint64(b[16:]), Code: le.Uint64(b[24:])}
	if r.Kind < replyACK || r.Kind > replyNeedMem || r.QPN > mask24 || r.PSN > mask24 {
		return replyFrame{}, fmt.Errorf("%w: reply", errFrame)
	}
	if r.Kind == replyNAK && (r.Code == uint64(verbs.WCSuccess) || r.Code > uint64(verbs.WCGeneralErr)) ||
		r.Kind == replyRNR && r.Code > 31 {
		return replyFrame{}, fmt.Errorf("%w: reply code %d", errFrame, r.Code)
	}
	return r, nil
}
