package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/pkg/xattr"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
)

// ioBufferSize is versitygw's buffer, in bytes, for each PUT, and for each
// ranged GET, where it is allocated and thrown away. Its default of 1 MiB
// costs small ranged GETs twice their CPU time.
const ioBufferSize = 64 << 10

// ErrPosixInUse means that this process has another posix gateway open.
var ErrPosixInUse = errors.New("gateway: another gateway on a directory is open in this process")

// workingDir guards the current directory of the process, which belongs to
// the posix gateway that is open.
var workingDir sync.Mutex

// posixBackend is versitygw's posix backend with its claim on the current
// directory of the process.
type posixBackend struct {
	backend.Backend
	xattrs  bool   // metadata are extended attributes of the files
	dir     string // absolute
	release func()
}

// openPosix opens the posix backend on o.Dir.
func openPosix(o Options) (*posixBackend, error) {
	if !workingDir.TryLock() {
		return nil, ErrPosixInUse
	}
	before, err := os.Getwd()
	if err != nil {
		// A vanished directory is no place to go back to.
		before = string(filepath.Separator)
	}
	release := sync.OnceFunc(func() {
		if err := os.Chdir(before); err != nil {
			o.Logger.Debug("cannot go back to the former current directory", slog.Any("err", err))
		}
		workingDir.Unlock()
	})

	popts := posix.PosixOpts{
		IOBufferSize:        ioBufferSize,
		CopyObjectThreshold: maxCopySize,
	}
	var store meta.MetadataStorer
	xattrs := true
	if err := probeXattr(o.Dir); err == nil {
		store = xattrStore{}
	} else if !errors.Is(err, syscall.ENOTSUP) && !errors.Is(err, syscall.EPERM) {
		release()
		return nil, fmt.Errorf("directory for the buckets: %w", err)
	} else {
		xattrs = false
		dir, err := sidecarDir(o)
		if err != nil {
			release()
			return nil, err
		}
		sc, err := meta.NewSideCar(dir)
		if err != nil {
			release()
			return nil, fmt.Errorf("metadata directory %s: %w", dir, err)
		}
		o.Logger.Warn("the file system has no extended attributes, so the metadata of objects goes into a directory of its own; "+
			"while an object is being overwritten, a reader can see its new ETag with its old data",
			slog.String("dir", o.Dir), slog.String("metadata_dir", dir))
		store, popts.SideCarDir = sc, dir
	}

	be, err := posix.New(o.Dir, store, popts)
	if err != nil {
		release()
		return nil, err
	}
	listings := quickListings{Backend: be, dir: o.Dir, object: be.FileToObj}
	return &posixBackend{Backend: listings, xattrs: xattrs, dir: o.Dir, release: release}, nil
}

// maxCopySize is S3's limit for one CopyObject or UploadPartCopy, in bytes.
const maxCopySize = 5 << 30

// Shutdown closes the backend and gives the current directory back.
func (b *posixBackend) Shutdown() {
	b.Backend.Shutdown()
	b.release()
}

// probeXattr reports whether files below dir can carry user attributes. It
// writes one: some file systems answer a read with "no such attribute" and
// refuse the write.
func probeXattr(dir string) error {
	f, err := os.CreateTemp(dir, ".s3rdmagw-probe-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return xattr.FSet(f, "user.s3rdmagw.probe", []byte("x"))
}

// sidecarDir returns the existing directory for metadata that cannot be kept
// in extended attributes.
func sidecarDir(o Options) (string, error) {
	dir := o.MetadataDir
	if dir == "" {
		dir = filepath.Join(filepath.Dir(o.Dir), "."+filepath.Base(o.Dir)+".s3rdmagw")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the file system of %s has no extended attributes and the directory for metadata cannot be made: %w", o.Dir, err)
	}
	return dir, nil
}
