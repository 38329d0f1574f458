package fs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

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
		err = p.copyTo(path) // only a file made with O_TMPFILE can be given a name
	}
	if err != nil {
		return fmt.Errorf("keep unsaved data as %s: %w", path, err)
	}
	return nil
}

// copyTo writes the content to a new file.
func (p *spool) copyTo(path string) error {
	info, err := p.f.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.NewSectionReader(p.f, 0, info.Size()))
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		os.Remove(path)
	}
	return err
}

// unsavedPath is where the content of a file of the given name is kept. The name
// may be as long as a name can be, and is cut.
func unsavedPath(dir, name string) string {
	const most = 180
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "")
	}
	return filepath.Join(dir, fmt.Sprintf("s3rdmafs-unsaved-%s-%d", name, time.Now().UnixNano()))
}

func (p *spool) close() { p.f.Close() }
