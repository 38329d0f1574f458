//go:build cgo

package ibv

/*
#cgo noescape shim_post_send
#cgo nocallback shim_post_send
#cgo noescape shim_post_recv
#cgo nocallback shim_post_recv
#cgo noescape shim_modify_qp
#cgo nocallback shim_modify_qp
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

type qp struct {
	object
	dev     *device
	lib     *C.struct_shim_lib
	parents []*object
	qp      unsafe.Pointer
	num     uint32

	modifyMu sync.Mutex // orders transitions; taken inside object.mu
	// state is the last one set by Modify; the device may have gone to ERR
	// since. Some drivers queue a work request that comes too early and report
	// the error all the same, so such requests are refused before.
	state atomic.Uint32
}

// softRoCERetries is the largest retry count that Soft-RoCE ends with: it takes
// 7 as "without end" (seen with Linux 6.1), so a WRITE to a peer that is gone
// would never complete.
const softRoCERetries = 6

// softRoCETimeout doubles an ACK timeout. Adapters wait up to four times what
// they are told, Soft-RoCE no longer than that, and its peer may have to wait
// for a CPU.
func softRoCETimeout(t uint8) uint8 {
	if t == 0 { // without end
		return 0
	}
	return min(t+1, 31)
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Modify(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	if a.AH.SGIDIndex < 0 || a.AH.SGIDIndex > math.MaxUint8 {
		return fmt.Errorf("%w: GID index %d", verbs.ErrInvalid, a.AH.SGIDIndex)
	}
	c := C.struct_shim_qp_attr{
		state:              C.uint32_t(a.State),
		access:             C.uint32_t(a.AccessFlags),
		path_mtu:           C.uint32_t(a.PathMTU),
		dest_qpn:           C.uint32_t(a.DestQPN),
		rq_psn:             C.uint32_t(a.RQPSN),
		sq_psn:             C.uint32_t(a.SQPSN),
		dgid:               *(*[16]C.uint8_t)(unsafe.Pointer(&a.AH.DGID)),
		pkey_index:         C.uint16_t(a.PKeyIndex),
		dlid:               C.uint16_t(a.AH.DLID),
		port:               C.uint8_t(a.Port),
		sgid_index:         C.uint8_t(a.AH.SGIDIndex),
		hop_limit:          C.uint8_t(a.AH.HopLimit),
		traffic_class:      C.uint8_t(a.AH.TrafficClass),
		sl:                 C.uint8_t(a.AH.SL),
		src_path_bits:      C.uint8_t(a.AH.SrcPathBits),
		ah_port:            C.uint8_t(a.AH.PortNum),
		max_rd_atomic:      C.uint8_t(a.MaxRdAtomic),
		max_dest_rd_atomic: C.uint8_t(a.MaxDestRdAtomic),
		min_rnr_timer:      C.uint8_t(a.MinRNRTimer),
		timeout:            C.uint8_t(a.Timeout),
		retry_cnt:          C.uint8_t(a.RetryCnt),
		rnr_retry:          C.uint8_t(a.RNRRetry),
	}
	if a.AH.IsGlobal {
		c.is_global = 1
	}
	if q.dev.softRoCE && a.RetryCnt > softRoCERetries {
		c.retry_cnt = softRoCERetries
		c.timeout = C.uint8_t(softRoCETimeout(a.Timeout))
	}
	return q.use(func() error {
		q.modifyMu.Lock()
		defer q.modifyMu.Unlock()
		errno := unix.Errno(C.shim_modify_qp(q.lib, q.qp, &c, C.uint32_t(mask)))
		if errno != 0 {
			return wrap(fmt.Sprintf("ibv_modify_qp to %s", a.State), errno)
		}
		if mask&verbs.AttrState != 0 {
			q.state.Store(uint32(a.State))
		}
		return nil
	})
}

func (q *qp) State() (verbs.QPState, error) {
	var s C.uint32_t
	err := q.use(func() error {
		return wrap("ibv_query_qp", unix.Errno(C.shim_query_qp_state(q.lib, q.qp, &s)))
	})
	return verbs.QPState(s), err
}

// sges is the C form of a work request's list; it stays on the Go stack.
type sges [C.SHIM_MAX_SGE]C.struct_shim_sge

func (s *sges) set(list []verbs.SGE) error {
	if len(list) > len(s) {
		return fmt.Errorf("%w: %d scatter-gather entries", verbs.ErrInvalid, len(list))
	}
	for i, e := range list {
		s[i] = C.struct_shim_sge{addr: C.uint64_t(e.Addr), length: C.uint32_t(e.Length), lkey: C.uint32_t(e.LKey)}
	}
	return nil
}

func (q *qp) PostSend(wr verbs.SendWR) error {
	var list sges
	if err := list.set(wr.SGEs); err != nil {
		return err
	}
	c := C.struct_shim_send{
		id:          C.uint64_t(wr.ID),
		remote_addr: C.uint64_t(wr.RemoteAddr),
		rkey:        C.uint32_t(wr.RKey),
		imm:         C.uint32_t(wr.Imm),
	}
	switch wr.Opcode {
	case verbs.OpWrite:
	case verbs.OpWriteWithImm:
		c.with_imm = 1
	default:
		return fmt.Errorf("%w: opcode %d", verbs.ErrInvalid, wr.Opcode)
	}
	if wr.Signaled {
		c.signaled = 1
	}
	return q.use(func() error {
		if s := verbs.QPState(q.state.Load()); s < verbs.StateRTS {
			return fmt.Errorf("%w: send work request in state %s", verbs.ErrInvalid, s)
		}
		return wrapPost("ibv_post_send", unix.Errno(C.shim_post_send(q.qp, &c, &list[0], C.int(len(wr.SGEs)))))
	})
}

func (q *qp) PostRecv(wr verbs.RecvWR) error {
	var list sges
	if err := list.set(wr.SGEs); err != nil {
		return err
	}
	post := func() error {
		return wrapPost("ibv_post_recv", unix.Errno(C.shim_post_recv(q.qp, C.uint64_t(wr.ID), &list[0], C.int(len(wr.SGEs)))))
	}
	return q.use(func() error {
		switch s := verbs.QPState(q.state.Load()); s {
		case verbs.StateReset:
			return fmt.Errorf("%w: receive work request in state %s", verbs.ErrInvalid, s)
		case verbs.StateErr:
			return q.recvInError(post)
		}
		return post()
	})
}

// recvInError posts a receive that is flushed at once. Soft-RoCE (seen with
// Linux 6.1) lets it lie until the next transition, so ERR is entered again.
func (q *qp) recvInError(post func() error) error {
	q.modifyMu.Lock()
	defer q.modifyMu.Unlock()
	if err := post(); err != nil || verbs.QPState(q.state.Load()) != verbs.StateErr {
		return err
	}
	c := C.struct_shim_qp_attr{state: C.uint32_t(verbs.StateErr)}
	C.shim_modify_qp(q.lib, q.qp, &c, C.uint32_t(verbs.AttrState)) // the receive is posted even if this fails
	return nil
}

func (q *qp) Close() error {
	return q.close("QP", func() error {
		if errno := unix.Errno(C.shim_destroy_qp(q.lib, q.qp)); errno != 0 {
			return wrap("ibv_destroy_qp", errno)
		}
		releaseAll(q.parents)
		return nil
	})
}
