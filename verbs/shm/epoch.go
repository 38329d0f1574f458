package shm

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// epochPage has one counter per QP slot of a device. Peers map it read-only. A
// request is alive as long as the counter has the value that the request names.
type epochPage struct {
	mem *verbs.Memory // of the owner
	buf []byte
}

const epochPageSize = maxQP * 8

func newEpochPage() (*epochPage, error) {
	mem, err := verbs.NewMemory("s3rdmafs-shm-epochs", epochPageSize)
	if err != nil {
		return nil, err
	}
	return &epochPage{mem: mem, buf: mem.Bytes()}, nil
}

// importEpochPage maps the page of a peer; fd stays the caller's.
func importEpochPage(fd int) (*epochPage, error) {
	buf, err := mapSealed(fd)
	if err != nil {
		return nil, err
	}
	if len(buf) < epochPageSize {
		unix.Munmap(buf)
		return nil, fmt.Errorf("%w: epoch page of %d bytes", errFrame, len(buf))
	}
	return &epochPage{buf: buf}, nil
}

func (p *epochPage) close() error {
	if p.mem != nil {
		return p.mem.Close()
	}
	return unix.Munmap(p.buf)
}

func (p *epochPage) slot(i uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&p.buf[i*8]))
}

// current reports whether a request of that epoch is still alive. All reads of
// the request's memory that come before it in program order are done before.
func (p *epochPage) current(slot uint32, epoch uint64) bool {
	// An atomic load alone lets earlier plain loads pass it on weakly ordered
	// CPUs; a read-modify-write does not.
	var fence atomic.Uint32
	fence.Add(1)
	return p.slot(slot).Load() == epoch
}

// mapSealed maps a descriptor that came from a peer, for reading. It must be a
// memfd that cannot shrink: a page that vanishes under a copy is a SIGBUS.
func mapSealed(fd int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: memory is not sealed", errFrame)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
		return nil, fmt.Errorf("%w: memory is not read-only", errFrame)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("%w: memory is not a memfd of small pages", errFrame)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size <= 0 || st.Size%int64(os.Getpagesize()) != 0 {
		return nil, fmt.Errorf("%w: memory of %d bytes", errFrame, st.Size)
	}
	buf, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map memory of a peer: %w", err)
	}
	return buf, nil
}

// reopenReadOnly gives a second, read-only open file of the memfd behind f.
func reopenReadOnly(f *os.File) (*os.File, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var ro *os.File
	var oerr error
	if err := rc.Control(func(fd uintptr) {
		ro, oerr = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	}); err != nil {
		return nil, err
	}
	return ro, oerr
}
