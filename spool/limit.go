package spool

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxReserve and reserveShare bound the default of Options.Reserve.
	maxReserve   = 1 << 30
	reserveShare = 20
)

// Fits reports, as an error that wraps ENOSPC, when n more bytes would pass the
// limit or the reserve.
func (s *Spool) Fits(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fitsLocked(n)
}

func (s *Spool) fitsLocked(n int64) error {
	if s.o.Size > 0 && s.used+n > s.o.Size {
		return fmt.Errorf("spool: %w: %d of %d bytes are in use", syscall.ENOSPC, s.used, s.o.Size)
	}
	if s.o.Reserve <= 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.own.lock.Fd()), &st); err != nil {
		return fmt.Errorf("spool: free space: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize; free-n < s.o.Reserve {
		return fmt.Errorf("spool: %w: %d bytes are free on its file system, %d stay free", syscall.ENOSPC, free, s.o.Reserve)
	}
	return nil
}

// defaultReserve of the file system the own slot is on.
func (s *Spool) defaultReserve() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(s.own.lock.Fd()), &st); err != nil {
		return 0, fmt.Errorf("spool: size of the file system: %w", err)
	}
	return min(maxReserve, int64(st.Blocks)*st.Bsize/reserveShare), nil
}

// reserve counts n bytes about to be written.
func (s *Spool) reserve(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fitsLocked(n); err != nil {
		return err
	}
	s.used += n
	return nil
}

// charge replaces reserved bytes by the room f really takes.
func (s *Spool) charge(f *File, reserved int64) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.data.Fd()), &st)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= reserved
	if err == nil {
		s.used += st.Blocks*512 - f.charged
		f.charged = st.Blocks * 512
	}
}

func (s *Spool) release(f *File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= f.charged
	f.charged = 0
}

// Used is the room that the files of this process take on the disk, bytes.
func (s *Spool) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
