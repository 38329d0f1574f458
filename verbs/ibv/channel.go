//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// compChannel waits on the netpoller, so that a wait costs no thread.
type compChannel struct {
	object
	dev    *device
	ch     unsafe.Pointer
	file   *os.File
	turn   chan struct{} // held by the one waiter that uses the read deadline
	closed chan struct{}
}

var (
	noDeadline time.Time
	longAgo    = time.Unix(1, 0)
)

func (d *device) CreateCompChannel() (verbs.CompChannel, error) {
	if err := d.retain(); err != nil {
		return nil, err
	}
	c := &compChannel{dev: d, turn: make(chan struct{}, 1), closed: make(chan struct{})}
	var fd C.int
	if errno := unix.Errno(C.shim_create_channel(d.l.lib, d.ctx, &c.ch, &fd)); errno != 0 {
		d.release()
		return nil, wrap("ibv_create_comp_channel", errno)
	}
	var err error
	if c.file, err = pollable(int(fd), "comp:"+d.name); err != nil {
		C.shim_destroy_channel(d.l.lib, c.ch)
		d.release()
		return nil, err
	}
	return c, nil
}

// Wait may be called by several goroutines; they take turns.
func (c *compChannel) Wait(ctx context.Context) (verbs.CQ, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.closed:
		return nil, verbs.ErrClosed
	}
	if c.file.SetReadDeadline(noDeadline) != nil {
		return nil, verbs.ErrClosed
	}
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.file.SetReadDeadline(longAgo) // fails only when closed, which ends the wait too
		close(expired)
	})
	defer func() {
		if !stop() {
			<-expired // or it would cut short the next waiter
		}
	}()

	raw, err := c.file.SyscallConn()
	if err != nil {
		return nil, verbs.ErrClosed
	}
	var found *cq
	var errno unix.Errno
	err = raw.Read(func(uintptr) bool {
		found, errno = c.next()
		return errno != unix.EAGAIN
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, ctx.Err()
	case err != nil:
		return nil, verbs.ErrClosed
	case errno != 0:
		return nil, wrap("ibv_get_cq_event", errno)
	}
	return found, nil
}

// next takes the next event of a CQ that still exists.
func (c *compChannel) next() (*cq, unix.Errno) {
	for {
		var id C.uint64_t
		errno := unix.Errno(C.shim_cq_event(c.dev.l.lib, c.ch, &id))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return nil, errno
		}
		c.dev.cqMu.Lock()
		found := c.dev.cqs[uint64(id)]
		c.dev.cqMu.Unlock()
		if found != nil {
			return found, 0
		}
	}
}

func (c *compChannel) Close() error {
	return c.close("completion channel", func() error {
		if c.file != nil {
			close(c.closed)
			c.file.Close()
			c.turn <- struct{}{} // the last waiter has left
			c.file = nil
		}
		if errno := unix.Errno(C.shim_destroy_channel(c.dev.l.lib, c.ch)); errno != 0 {
			return wrap("ibv_destroy_comp_channel", errno)
		}
		c.dev.release()
		return nil
	})
}
