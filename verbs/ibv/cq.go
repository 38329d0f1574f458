//go:build cgo

package ibv

/*
#cgo noescape shim_poll_cq
#cgo nocallback shim_poll_cq
#cgo nocallback shim_req_notify
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

type cq struct {
	object
	dev     *device
	id      uint64
	ch      *compChannel // nil: none
	c       *C.struct_shim_cq
	depth   int
	overrun atomic.Bool

	pollMu sync.Mutex // guards c.wc
}

func (d *device) CreateCQ(depth int, channel verbs.CompChannel) (verbs.CQ, error) {
	if depth < 1 || depth > math.MaxInt32 {
		return nil, fmt.Errorf("%w: CQ of %d entries", verbs.ErrInvalid, depth)
	}
	c := &cq{dev: d, id: d.nextCQ.Add(1)}
	parents := []*object{&d.object}
	if channel != nil {
		ch, ok := channel.(*compChannel)
		if !ok || ch.dev != d {
			return nil, fmt.Errorf("%w: channel is not of device %s", verbs.ErrInvalid, d.name)
		}
		c.ch = ch
		parents = append(parents, &ch.object)
	}
	if err := retainAll(parents...); err != nil {
		return nil, err
	}
	var errno unix.Errno
	if c.ch == nil {
		errno = unix.Errno(C.shim_create_cq(d.l.lib, d.ctx, C.int(depth), nil, C.uint64_t(c.id), &c.c))
	} else {
		errno = unix.Errno(C.shim_create_cq(d.l.lib, d.ctx, C.int(depth), c.ch.ch, C.uint64_t(c.id), &c.c))
	}
	if errno != 0 {
		releaseAll(parents)
		return nil, wrap("ibv_create_cq", errno)
	}
	c.depth = int(c.c.depth)
	d.cqMu.Lock()
	d.cqs[c.id] = c
	d.cqMu.Unlock()
	return c, nil
}

func (c *cq) Depth() int { return c.depth }

func (c *cq) Poll(wc []verbs.WC) (int, error) {
	n := 0
	err := c.use(func() error {
		c.pollMu.Lock()
		defer c.pollMu.Unlock()
		for n < len(wc) {
			if c.overrun.Load() {
				return verbs.ErrCQOverrun
			}
			want := min(len(wc)-n, C.SHIM_POLL_MAX)
			var got C.int
			if errno := unix.Errno(C.shim_poll_cq(c.c, C.int(want), &got)); errno != 0 {
				return wrap("ibv_poll_cq", errno)
			}
			for i := range int(got) {
				w := &c.c.wc[i]
				wc[n] = verbs.WC{
					ID:        uint64(w.id),
					Status:    verbs.WCStatus(w.status),
					Opcode:    verbs.WCOpcode(w.opcode),
					VendorErr: uint32(w.vendor_err),
					ByteLen:   uint32(w.byte_len),
					Imm:       uint32(w.imm),
					QPN:       uint32(w.qp_num),
					Flags:     verbs.WCFlags(w.flags),
				}
				n++
			}
			if int(got) < want {
				break
			}
		}
		return nil
	})
	if n > 0 {
		return n, nil // an error is met again by the next Poll
	}
	return 0, err
}

func (c *cq) ReqNotify() error {
	if c.ch == nil {
		return fmt.Errorf("%w: CQ has no completion channel", verbs.ErrInvalid)
	}
	return c.use(func() error {
		return wrap("ibv_req_notify_cq", unix.Errno(C.shim_req_notify(c.c)))
	})
}

func (c *cq) Close() error {
	return c.close("CQ", func() error {
		if errno := unix.Errno(C.shim_destroy_cq(c.dev.l.lib, c.c)); errno != 0 {
			return wrap("ibv_destroy_cq", errno)
		}
		c.dev.cqMu.Lock()
		delete(c.dev.cqs, c.id)
		c.dev.cqMu.Unlock()
		if c.ch != nil {
			c.ch.release()
		}
		c.dev.release()
		return nil
	})
}
