package fs

import (
	"context"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userXattrErrno tells whether name is in the namespace that is kept: only
// "user." is.
func userXattrErrno(name string) syscall.Errno {
	if !strings.HasPrefix(name, "user.") {
		return syscall.EOPNOTSUPP
	}
	return 0
}

// readXattr answers getxattr from the attributes x.
func readXattr(value []byte, ok bool, dest []byte) (uint32, syscall.Errno) {
	switch {
	case !ok:
		return 0, syscall.ENODATA
	case len(dest) < len(value):
		return uint32(len(value)), syscall.ERANGE
	}
	return uint32(copy(dest, value)), 0
}

func listXattr(x map[string][]byte, dest []byte) (uint32, syscall.Errno) {
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(x)) {
		all = append(append(all, name...), 0)
	}
	if len(dest) < len(all) {
		return uint32(len(all)), syscall.ERANGE
	}
	return uint32(copy(dest, all)), 0
}

// editXattr sets name in meta, or removes it when value is nil.
func editXattr(meta map[string]string, name string, value []byte, flags uint32) (map[string]string, syscall.Errno) {
	x := xattrsOf(meta)
	_, have := x[name]
	switch {
	case value == nil && !have, flags&unix.XATTR_REPLACE != 0 && !have:
		return nil, syscall.ENODATA
	case flags&unix.XATTR_CREATE != 0 && have:
		return nil, syscall.EEXIST
	case value == nil:
		delete(x, name)
	default:
		x[name] = value
	}
	return withXattrs(meta, x), 0
}

// xattrs are the extended attributes of a file, asked for when a listing left
// them open.
func (f *file) xattrs(ctx context.Context) (map[string][]byte, syscall.Errno) {
	f.mu.Lock()
	known := f.metaKnown || !f.stored
	f.mu.Unlock()
	if !known {
		if errno := f.look(ctx, time.Now()); errno != 0 {
			return nil, errno
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return xattrsOf(f.info.Meta), 0
}

// Getxattr implements gofs.NodeGetxattrer.
func (f *file) Getxattr(ctx context.Context, name string, dest []byte) (n uint32, errno syscall.Errno) {
	f.fs.n.count(opXattr, 0)
	if strings.HasPrefix(name, "security.") {
		return 0, syscall.ENODATA // the kernel asks before every first write
	}
	if e := userXattrErrno(name); e != 0 {
		return 0, e
	}
	x, errno := f.xattrs(ctx)
	if errno != 0 {
		return 0, errno
	}
	v, ok := x[name]
	return readXattr(v, ok, dest)
}

// Listxattr implements gofs.NodeListxattrer.
func (f *file) Listxattr(ctx context.Context, dest []byte) (uint32, syscall.Errno) {
	f.fs.n.count(opXattr, 0)
	x, errno := f.xattrs(ctx)
	if errno != 0 {
		return 0, errno
	}
	return listXattr(x, dest)
}

// Setxattr implements gofs.NodeSetxattrer.
func (f *file) Setxattr(ctx context.Context, name string, data []byte, flags uint32) (errno syscall.Errno) {
	defer func() { f.fs.n.count(opXattr, errno) }()
	return f.editXattr(ctx, name, append([]byte{}, data...), flags)
}

// Removexattr implements gofs.NodeRemovexattrer.
func (f *file) Removexattr(ctx context.Context, name string) (errno syscall.Errno) {
	defer func() { f.fs.n.count(opXattr, errno) }()
	return f.editXattr(ctx, name, nil, 0)
}

func (f *file) editXattr(ctx context.Context, name string, value []byte, flags uint32) syscall.Errno {
	if e := f.fs.readOnlyErrno(); e != 0 {
		return e
	}
	if e := userXattrErrno(name); e != 0 {
		return e
	}
	return f.fs.changeMeta(ctx, f, func(_ *attributes, raw *map[string]string) (bool, syscall.Errno) {
		m, errno := editXattr(*raw, name, value, flags)
		if errno == 0 {
			*raw = m
		}
		return errno == 0, errno
	})
}

// Getxattr implements gofs.NodeGetxattrer.
func (d *dir) Getxattr(_ context.Context, name string, dest []byte) (uint32, syscall.Errno) {
	s := d.fs
	s.n.count(opXattr, 0)
	switch {
	case name == StatsXattr && d == s.root:
		b, err := s.mount.statsJSON()
		if err != nil {
			return 0, syscall.EIO
		}
		return readXattr(b, true, dest)
	case strings.HasPrefix(name, "security."):
		return 0, syscall.ENODATA
	}
	if e := userXattrErrno(name); e != 0 {
		return 0, e
	}
	s.mu.Lock()
	v, ok := xattrsOf(d.meta)[name]
	s.mu.Unlock()
	return readXattr(v, ok, dest)
}

// Listxattr implements gofs.NodeListxattrer.
func (d *dir) Listxattr(_ context.Context, dest []byte) (uint32, syscall.Errno) {
	d.fs.n.count(opXattr, 0)
	d.fs.mu.Lock()
	x := xattrsOf(d.meta)
	d.fs.mu.Unlock()
	return listXattr(x, dest)
}

// Setxattr implements gofs.NodeSetxattrer.
func (d *dir) Setxattr(ctx context.Context, name string, data []byte, flags uint32) (errno syscall.Errno) {
	defer func() { d.fs.n.count(opXattr, errno) }()
	return d.editXattr(ctx, name, append([]byte{}, data...), flags)
}

// Removexattr implements gofs.NodeRemovexattrer.
func (d *dir) Removexattr(ctx context.Context, name string) (errno syscall.Errno) {
	defer func() { d.fs.n.count(opXattr, errno) }()
	return d.editXattr(ctx, name, nil, 0)
}

func (d *dir) editXattr(ctx context.Context, name string, value []byte, flags uint32) syscall.Errno {
	s := d.fs
	if e := s.readOnlyErrno(); e != 0 {
		return e
	}
	if name == StatsXattr {
		return syscall.EPERM
	}
	if e := userXattrErrno(name); e != 0 {
		return e
	}
	s.mu.Lock()
	raw := d.meta
	a := d.attributes
	s.mu.Unlock()
	m, errno := editXattr(raw, name, value, flags)
	if errno != 0 {
		return errno
	}
	return d.setMeta(ctx, s.metaOf(m, a, syscall.S_IFDIR))
}
