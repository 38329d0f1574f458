package stack

import (
	"errors"
	"fmt"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// Choice returns the port and GID that connections use; ok is false when no
// RDMA device is open. With several rails it is the first one's.
func (s *Stack) Choice() (c provider.Choice, ok bool) {
	if len(s.rails) == 0 {
		return c, false
	}
	return s.rails[0].chosen(), true
}

// Buffer is memory beside the cache, for what moves objects without one.
type Buffer struct {
	mem *verbs.Memory
	mr  verbs.MR
}

// NewBuffer maps n bytes and registers them when the stack has a device. The
// error wraps verbs.ErrMemlock when the process may not pin as much. The buffer
// must be closed before the stack.
func (s *Stack) NewBuffer(n int) (*Buffer, error) {
	if len(s.rails) > 0 {
		if limit, unlimited := provider.MemlockLimit(); !unlimited && uint64(n) > limit {
			return nil, fmt.Errorf("%w: %d KiB of buffers cannot be pinned, this process may lock %d KiB: raise it (ulimit -l, LimitMEMLOCK=)",
				verbs.ErrMemlock, n>>10, limit>>10)
		}
	}
	mem, err := verbs.NewMemory("s3rdmafs-buffer", n)
	if err != nil {
		return nil, err
	}
	b := &Buffer{mem: mem}
	if len(s.rails) == 0 {
		return b, nil
	}
	r := s.rails[s.next.Add(1)%uint64(len(s.rails))]
	if b.mr, err = (railPD{PD: r.pd, rail: r}).RegMR(mem, 0, len(mem.Bytes()), verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	return b, nil
}

// Segment is all of the buffer, rounded up to whole pages.
func (b *Buffer) Segment() verbs.Segment { return verbs.Segment{Buf: b.mem.Bytes(), MR: b.mr} }

// Close deregisters and unmaps. It must not be called after a transfer of the
// buffer failed with verbs.ErrUnsafe.
func (b *Buffer) Close() error {
	if b.mr != nil {
		if err := b.mr.Close(); err != nil {
			return err
		}
		b.mr = nil
	}
	return b.mem.Close()
}
