//go:build cgo

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// eventBacklog is how many asynchronous events wait for a reader.
const eventBacklog = 64

// gidRow has the layout of struct ibv_gid_entry.
type gidRow = C.struct_shim_gid

// Event types of enum ibv_event_type.
const (
	evCQErr       = C.SHIM_EV_CQ_ERR
	evQPFatal     = C.SHIM_EV_QP_FATAL
	evQPReqErr    = C.SHIM_EV_QP_REQ_ERR
	evQPAccessErr = C.SHIM_EV_QP_ACCESS_ERR
	evDeviceFatal = C.SHIM_EV_DEVICE_FATAL
	evPortActive  = C.SHIM_EV_PORT_ACTIVE
	evPortErr     = C.SHIM_EV_PORT_ERR
	evGIDChange   = C.SHIM_EV_GID_CHANGE
)

type device struct {
	object
	l    *library
	ctx  unsafe.Pointer
	name string
	attr verbs.DeviceAttr
	// softRoCE is set for rdma_rxe.
	softRoCE bool

	async      *os.File
	events     chan verbs.Event
	eventsDone chan struct{}

	nextCQ atomic.Uint64
	cqMu   sync.Mutex
	cqs    map[uint64]*cq // for events about a CQ
}

func (l *library) openAt(list unsafe.Pointer, i int, name string) (*device, error) {
	if C.shim_device_is_iwarp(list, C.int(i)) != 0 {
		return nil, fmt.Errorf("%w: %s is an iWARP device", verbs.ErrUnsupported, name)
	}
	d := &device{
		l:          l,
		name:       name,
		softRoCE:   l.sysfs.isSoftRoCE(name),
		events:     make(chan verbs.Event, eventBacklog),
		eventsDone: make(chan struct{}),
		cqs:        make(map[uint64]*cq),
	}
	if errno := unix.Errno(C.shim_open(l.lib, list, C.int(i), &d.ctx)); errno != 0 {
		return nil, wrap("ibv_open_device "+name, errno)
	}
	var a C.struct_shim_device_attr
	err := wrap("ibv_query_device", unix.Errno(C.shim_query_device(l.lib, d.ctx, &a)))
	if err == nil {
		d.async, err = pollable(int(C.shim_async_fd(d.ctx)), "async:"+name)
	}
	if err != nil {
		C.shim_close(l.lib, d.ctx)
		return nil, err
	}
	d.attr = verbs.DeviceAttr{
		FirmwareVersion: C.GoString(&a.fw_ver[0]),
		NumPorts:        int(a.num_ports),
		MaxQP:           int(a.max_qp),
		MaxQPWR:         int(a.max_qp_wr),
		MaxSGE:          min(int(a.max_sge), C.SHIM_MAX_SGE),
		MaxCQ:           int(a.max_cq),
		MaxCQE:          int(a.max_cqe),
		MaxMR:           int(a.max_mr),
		MaxPD:           int(a.max_pd),
		MaxMRSize:       uint64(a.max_mr_size),
	}
	go d.readEvents()
	return d, nil
}

// pollable makes fd non-blocking and returns a duplicate of it that is on
// Go's netpoller; fd itself stays with libibverbs, which reads it and closes it.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("%s: set non-blocking: %w", name, err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: duplicate: %w", name, err)
	}
	f := os.NewFile(uintptr(dup), name)
	if err := f.SetReadDeadline(noDeadline); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: cannot be polled: %w", name, err)
	}
	return f, nil
}

func (d *device) Name() string               { return d.name }
func (d *device) Provider() string           { return "ibv" }
func (d *device) Attr() verbs.DeviceAttr     { return d.attr }
func (d *device) Events() <-chan verbs.Event { return d.events }

func (d *device) Port(n uint8) (verbs.PortAttr, error) {
	var a C.struct_shim_port_attr
	err := d.use(func() error {
		return wrap(fmt.Sprintf("ibv_query_port %s/%d", d.name, n), unix.Errno(C.shim_query_port(d.l.lib, d.ctx, C.uint8_t(n), &a)))
	})
	if err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		State:     verbs.PortState(a.state),
		ActiveMTU: verbs.MTU(a.active_mtu),
		MaxMsgSz:  uint32(a.max_msg_sz),
		LID:       uint16(a.lid),
		LinkLayer: verbs.LinkLayer(a.link_layer),
		GIDTblLen: int(a.gid_tbl_len),
	}, nil
}

func (d *device) GIDs(n uint8) ([]verbs.GIDEntry, error) {
	port, err := d.Port(n)
	if err != nil {
		return nil, err
	}
	rows := 0 // the table query has no port: it answers for all
	for i := 1; i <= d.attr.NumPorts; i++ {
		p, err := d.Port(uint8(i))
		if err != nil {
			return nil, err
		}
		rows += p.GIDTblLen
	}
	if rows == 0 {
		return nil, nil
	}
	table := make([]gidRow, rows)
	var got C.size_t
	var errno unix.Errno
	err = d.use(func() error {
		errno = unix.Errno(C.shim_query_gid_table(d.l.lib, d.ctx, &table[0], C.size_t(rows), &got))
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case errno == unix.ENOSYS || errno == unix.EOPNOTSUPP:
		return d.gidsOneByOne(n, port)
	case errno != 0:
		return nil, wrap("ibv_query_gid_table "+d.name, errno)
	}
	var entries []verbs.GIDEntry
	for _, g := range table[:got] {
		if uint8(g.port) != n {
			continue
		}
		e := verbs.GIDEntry{Index: int(g.index), GID: gidOf(&g.gid), Type: verbs.GIDType(g._type)}
		if ifc, err := net.InterfaceByIndex(int(g.ifindex)); g.ifindex != 0 && err == nil {
			e.NetDev = ifc.Name
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// gidsOneByOne is for libraries without the table query.
func (d *device) gidsOneByOne(n uint8, port verbs.PortAttr) ([]verbs.GIDEntry, error) {
	var entries []verbs.GIDEntry
	for i := range port.GIDTblLen {
		var gid [16]C.uint8_t
		err := d.use(func() error {
			return wrap("ibv_query_gid "+d.name, unix.Errno(C.shim_query_gid(d.l.lib, d.ctx, C.uint8_t(n), C.int(i), &gid[0])))
		})
		if err != nil {
			return nil, err
		}
		e := verbs.GIDEntry{Index: i, GID: gidOf(&gid)}
		if e.GID.IsZero() {
			continue
		}
		e.Type = d.l.sysfs.gidType(d.name, n, i, port.LinkLayer)
		e.NetDev = d.l.sysfs.gidNetDev(d.name, n, i)
		entries = append(entries, e)
	}
	return entries, nil
}

func gidOf(raw *[16]C.uint8_t) verbs.GID { return *(*verbs.GID)(unsafe.Pointer(raw)) }

func (d *device) AllocPD() (verbs.PD, error) {
	if err := d.retain(); err != nil {
		return nil, err
	}
	p := &pd{dev: d}
	if errno := unix.Errno(C.shim_alloc_pd(d.l.lib, d.ctx, &p.pd)); errno != 0 {
		d.release()
		return nil, wrap("ibv_alloc_pd", errno)
	}
	return p, nil
}

// Close stops the events, then closes the context. A second try after a
// failure of ibv_close_device finds no events any more.
func (d *device) Close() error {
	return d.close("device "+d.name, func() error {
		d.async.Close()
		<-d.eventsDone
		return wrap("ibv_close_device", unix.Errno(C.shim_close(d.l.lib, d.ctx)))
	})
}

// readEvents runs until the device is closed or the kernel's side is gone.
// It takes no object's lock: closing a QP or CQ waits for its events to be
// acknowledged here.
func (d *device) readEvents() {
	defer close(d.eventsDone)
	defer close(d.events)
	raw, err := d.async.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool { // ends by Close
		for {
			var e C.struct_shim_event
			switch unix.Errno(C.shim_async_event(d.l.lib, d.ctx, &e)) {
			case 0:
				d.deliver(&e)
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
	})
}

func (d *device) deliver(e *C.struct_shim_event) {
	if e.kind == C.SHIM_EVENT_CQ {
		d.cqMu.Lock()
		c := d.cqs[uint64(e.cq_id)]
		d.cqMu.Unlock()
		if c != nil {
			c.overrun.Store(true)
		}
	}
	ev := verbs.Event{Type: eventType(e._type), Port: uint8(e.port), QPN: uint32(e.qp_num)}
	select {
	case d.events <- ev:
	default:
	}
}

func eventType(t C.uint32_t) verbs.EventType {
	switch t {
	case evPortActive:
		return verbs.EventPortActive
	case evPortErr:
		return verbs.EventPortError
	case evQPFatal, evQPReqErr, evQPAccessErr:
		return verbs.EventQPFatal
	case evCQErr:
		return verbs.EventCQError
	case evDeviceFatal:
		return verbs.EventDeviceFatal
	case evGIDChange:
		return verbs.EventGIDChange
	}
	return verbs.EventOther
}
