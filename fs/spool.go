package fs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// spool is the content of a file that is being written: a sparse temporary
// file without a name. It has no lock of its own, see file.io.
type spool struct{ f *os.File }

func newSpool(dir string) (*spool, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return &spool{os.NewFile(uintptr(fd), filepath.Join(dir, "spool"))}, nil
	}
	// Some file systems have no O_TMPFILE.
	f, err := os.CreateTemp(dir, ".s3rdmafs-spool-")
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("spool: %w", err)
	}
	return &spool{f}, nil
}

// save gives the content a name, so that it outlives the process.
func (p *spool) save(path string) error {
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", p.f.Fd()), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return fmt.Errorf("keep unsaved data as %s: %w", path, err)
	}
	return nil
}

func (p *spool) close() { p.f.Close() }
