//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

type pd struct {
	object
	dev *device
	pd  unsafe.Pointer
}

func (p *pd) RegMR(mem *verbs.Memory, off, length int, access verbs.Access) (verbs.MR, error) {
	buf := mem.Bytes()
	if off < 0 || length <= 0 || off > len(buf) || length > len(buf)-off {
		return nil, fmt.Errorf("%w: region [%d,+%d) of %d bytes", verbs.ErrInvalid, off, length, len(buf))
	}
	if err := p.retain(); err != nil {
		return nil, err
	}
	m := &mr{pd: p, mem: mem, buf: buf[off : off+length : off+length]}
	var c C.struct_shim_mr
	errno := unix.Errno(C.shim_reg_mr(p.dev.l.lib, p.pd, unsafe.Pointer(&m.buf[0]), C.size_t(length), C.int(access), &c))
	if errno != 0 {
		p.release()
		return nil, registerError(errno, length)
	}
	m.mr, m.lkey, m.rkey = c.mr, uint32(c.lkey), uint32(c.rkey)
	return m, nil
}

func (p *pd) CreateQP(init verbs.QPInitAttr) (verbs.QP, error) {
	scq, ok := init.SendCQ.(*cq)
	if !ok || scq.dev != p.dev {
		return nil, fmt.Errorf("%w: send CQ is not of device %s", verbs.ErrInvalid, p.dev.name)
	}
	rcq, ok := init.RecvCQ.(*cq)
	if !ok || rcq.dev != p.dev {
		return nil, fmt.Errorf("%w: receive CQ is not of device %s", verbs.ErrInvalid, p.dev.name)
	}
	n := init.Cap
	if min(n.MaxSendWR, n.MaxRecvWR, n.MaxSendSGE, n.MaxRecvSGE) < 0 || max(n.MaxSendSGE, n.MaxRecvSGE) > C.SHIM_MAX_SGE {
		return nil, fmt.Errorf("%w: QP limits %+v", verbs.ErrInvalid, n)
	}
	parents := []*object{&p.object, &scq.object, &rcq.object}
	if err := retainAll(parents...); err != nil {
		return nil, err
	}
	c := C.struct_shim_qp_init{
		max_send_wr:  C.uint32_t(n.MaxSendWR),
		max_recv_wr:  C.uint32_t(n.MaxRecvWR),
		max_send_sge: C.uint32_t(n.MaxSendSGE),
		max_recv_sge: C.uint32_t(n.MaxRecvSGE),
	}
	if init.SigAll {
		c.sq_sig_all = 1
	}
	q := &qp{dev: p.dev, lib: p.dev.l.lib, parents: parents}
	var num C.uint32_t
	if errno := unix.Errno(C.shim_create_qp(q.lib, p.pd, scq.c, rcq.c, &c, &q.qp, &num)); errno != 0 {
		releaseAll(parents)
		return nil, wrap("ibv_create_qp", errno)
	}
	q.num = uint32(num)
	return q, nil
}

func (p *pd) Close() error {
	return p.close("PD", func() error {
		if errno := unix.Errno(C.shim_dealloc_pd(p.dev.l.lib, p.pd)); errno != 0 {
			return wrap("ibv_dealloc_pd", errno)
		}
		p.dev.release()
		return nil
	})
}

type mr struct {
	object
	pd         *pd
	mem        *verbs.Memory // keeps the mapping reachable while it is pinned
	buf        []byte
	mr         unsafe.Pointer
	lkey, rkey uint32
}

func (m *mr) LKey() uint32  { return m.lkey }
func (m *mr) RKey() uint32  { return m.rkey }
func (m *mr) Bytes() []byte { return m.buf }
func (m *mr) Addr() uint64  { return uint64(uintptr(unsafe.Pointer(&m.buf[0]))) }

func (m *mr) Close() error {
	return m.close("MR", func() error {
		if errno := unix.Errno(C.shim_dereg_mr(m.pd.dev.l.lib, m.mr)); errno != 0 {
			return wrap("ibv_dereg_mr", errno)
		}
		m.pd.release()
		return nil
	})
}
