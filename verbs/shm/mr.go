package shm

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"s3rdmafs/verbs"
)

const knownAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead

// exported is a Memory that at least one MR of the device covers.
type exported struct {
	id     uint64
	file   *os.File // read-only; closed after every connection let go of it
	closed atomic.Bool
	refs   int // MRs; guarded by dev.mu
}

type mr struct {
	pd     *pd
	mem    *verbs.Memory
	exp    *exported
	off    int
	buf    []byte
	addr   uint64
	access verbs.Access
	lkey   uint32
	rkey   uint32
	pinned uint64

	// mu is held shared over each piece of a copy into the region, and exclusively
	// to take the rights away.
	mu   sync.RWMutex
	dead bool
	// sends counts the WRs in flight that read the region.
	sends atomic.Int32
}

type pd struct {
	dev  *Device
	refs int // MRs and QPs; guarded by dev.mu
}

func (p *pd) Close() error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.refs > 0 {
		return fmt.Errorf("%w: PD of %d MRs and QPs", verbs.ErrBusy, p.refs)
	}
	delete(d.pds, p)
	return nil
}

func (p *pd) RegMR(mem *verbs.Memory, off, length int, access verbs.Access) (verbs.MR, error) {
	if mem == nil {
		return nil, fmt.Errorf("%w: no memory", verbs.ErrInvalid)
	}
	all := mem.Bytes()
	switch {
	case length <= 0 || off < 0 || off > len(all) || length > len(all)-off:
		return nil, fmt.Errorf("%w: region [%d,+%d) of %d bytes", verbs.ErrInvalid, off, length, len(all))
	case uint64(length) > maxMRSize:
		return nil, fmt.Errorf("%w: region of %d bytes", verbs.ErrInvalid, length)
	case access&^knownAccess != 0:
		return nil, fmt.Errorf("%w: access %#x", verbs.ErrInvalid, access)
	case access&verbs.AccessRemoteWrite != 0 && access&verbs.AccessLocalWrite == 0:
		return nil, fmt.Errorf("%w: remote write needs local write", verbs.ErrInvalid)
	}
	m := &mr{
		pd:     p,
		mem:    mem,
		off:    off,
		buf:    all[off : off+length : off+length],
		access: access,
		pinned: pageSpan(off, length),
	}
	m.addr = uint64(uintptr(unsafe.Pointer(&m.buf[0])))
	if err := pin(m.pinned); err != nil {
		return nil, err
	}
	if err := p.dev.addMR(m); err != nil {
		unpin(m.pinned)
		return nil, err
	}
	return m, nil
}

// pageSpan is the size of the whole pages that hold a region.
func pageSpan(off, length int) uint64 {
	page := os.Getpagesize()
	first := off / page * page
	last := (off + length + page - 1) / page * page
	return uint64(last - first)
}

func (m *mr) LKey() uint32  { return m.lkey }
func (m *mr) RKey() uint32  { return m.rkey }
func (m *mr) Addr() uint64  { return m.addr }
func (m *mr) Bytes() []byte { return m.buf }

func (m *mr) Close() error {
	d := m.pd.dev
	if !d.removeMR(m) {
		return nil
	}
	m.mu.Lock()
	m.dead = true
	m.mu.Unlock()
	if m.sends.Load() > 0 {
		for _, q := range d.allQPs() {
			q.failSendsFrom(m)
		}
	}
	d.dropExport(m)
	unpin(m.pinned)
	return nil
}

// offset turns an IOVA into an offset, when length bytes from there lie inside.
func (m *mr) offset(addr, length uint64) (int, bool) {
	if addr < m.addr || addr-m.addr > uint64(len(m.buf)) || length > uint64(len(m.buf))-(addr-m.addr) {
		return 0, false
	}
	return int(addr - m.addr), true
}
