package verbs

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is page-aligned memory outside the Go heap, backed by a memfd whose
// size is sealed. It is what regions are registered from: any provider
// can pin its pages, and the software device can hand its descriptor to a peer.
type Memory struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
}

// NewMemory maps size bytes (rounded up to whole pages), all zero.
// Pages take no room before they are touched or pinned.
func NewMemory(name string, size int) (*Memory, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: memory of %d bytes", ErrInvalid, size)
	}
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "memfd:"+name)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		file.Close()
		return nil, fmt.Errorf("size memory of %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		file.Close()
		return nil, fmt.Errorf("seal memory: %w", err)
	}
	buf, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("map memory of %d bytes: %w", size, err)
	}
	return &Memory{file: file, buf: buf}, nil
}

// Bytes is the whole mapping. It must not be touched after Close.
func (m *Memory) Bytes() []byte { return m.buf }

// File is the memfd; owned by m.
func (m *Memory) File() *os.File { return m.file }

// Close unmaps the memory and closes the memfd. Every MR over it must be
// closed before. Closing twice does nothing.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.buf == nil {
		return nil
	}
	err := unix.Munmap(m.buf)
	m.buf = nil
	if cerr := m.file.Close(); err == nil {
		err = cerr
	}
	return err
}

// Bind asks for pages of a NUMA node for the n bytes from off on, as far as
// they were not touched yet. The kernel takes others when the node has none.
func (m *Memory) Bind(off, n, node int) error {
	if node < 0 {
		return fmt.Errorf("%w: NUMA node %d", ErrInvalid, node)
	}
	const bits = 64
	mask := make([]uint64, node/bits+1)
	mask[node/bits] = 1 << (node % bits)
	buf := m.buf[off : off+n]
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&buf[0])), uintptr(n),
		unix.MPOL_PREFERRED, uintptr(unsafe.Pointer(&mask[0])), uintptr(len(mask)*bits+1), 0)
	if errno != 0 {
		return fmt.Errorf("mbind to NUMA node %d: %w", node, errno)
	}
	return nil
}

// Segment is a piece of memory that takes part in one transfer. MR is nil
// when the memory is not registered; then only HTTP can move it. Otherwise Buf
// lies inside MR.Bytes(), starting at Off.
type Segment struct {
	Buf []byte
	MR  MR
	Off int
}

// Addr is the IOVA of the segment's first byte.
func (s Segment) Addr() uint64 { return s.MR.Addr() + uint64(s.Off) }

// Slice returns the n bytes from off on, still registered.
func (s Segment) Slice(off, n int) Segment {
	return Segment{Buf: s.Buf[off : off+n : off+n], MR: s.MR, Off: s.Off + off}
}

// SGE is the local scatter-gather entry of a registered segment.
func (s Segment) SGE() SGE {
	return SGE{Addr: s.Addr(), Length: uint32(len(s.Buf)), LKey: s.MR.LKey()}
}
