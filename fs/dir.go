package fs

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"s3rdmafs/store"
)

// dir is a directory: a prefix of a bucket, a bucket, or the root.
type dir struct {
	entry

	// Guarded by filesystem.mu.
	attributes attributes
	meta       map[string]string // of the marker
	marked     bool              // the marker was seen or made, and not removed
	checked    time.Time         // when the bucket was last seen to have it
	changed    time.Time         // when meta was last changed here; a look begun before is void
	children   map[string]node
	seq        uint64               // counts local changes of names
	absent     map[string]time.Time // names a look did not find, and when it began
	recent     map[string]listed    // names of a listing
	aging      bool                 // what recent holds is going to be looked at
	handles    int                  // open directory handles
	removed    map[string]uint64    // by name, the seq at which it was removed, while handles are open
	witness    string               // a child the bucket was seen to have
}

var (
	_ gofs.NodeLookuper       = (*dir)(nil)
	_ gofs.NodeGetattrer      = (*dir)(nil)
	_ gofs.NodeSetattrer      = (*dir)(nil)
	_ gofs.NodeCreater        = (*dir)(nil)
	_ gofs.NodeMkdirer        = (*dir)(nil)
	_ gofs.NodeMknoder        = (*dir)(nil)
	_ gofs.NodeLinker         = (*dir)(nil)
	_ gofs.NodeSymlinker      = (*dir)(nil)
	_ gofs.NodeUnlinker       = (*dir)(nil)
	_ gofs.NodeRmdirer        = (*dir)(nil)
	_ gofs.NodeRenamer        = (*dir)(nil)
	_ gofs.NodeOpendirHandler = (*dir)(nil)
	_ gofs.NodeStatfser       = (*dir)(nil)
	_ gofs.NodeOnForgetter    = (*dir)(nil)
	_ gofs.NodeFsyncer        = (*dir)(nil)
	_ gofs.NodeGetxattrer     = (*dir)(nil)
	_ gofs.NodeSetxattrer     = (*dir)(nil)
	_ gofs.NodeListxattrer    = (*dir)(nil)
	_ gofs.NodeRemovexattrer  = (*dir)(nil)
)

func (d *dir) kind() uint32 { return syscall.S_IFDIR }

// OnForget implements gofs.NodeOnForgetter. For the root it is also called
// when the connection ends.
func (d *dir) OnForget() {
	if d != d.fs.root {
		d.fs.forget(d)
	}
}

// Statfs implements gofs.NodeStatfser.
func (d *dir) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	d.fs.statfs(out)
	return 0
}

// Fsync implements gofs.NodeFsyncer: names are in the bucket when the call
// that made them returns.
func (d *dir) Fsync(context.Context, gofs.FileHandle, uint32) syscall.Errno {
	d.fs.n.count(opFsync, 0)
	return 0
}

// Getattr implements gofs.NodeGetattrer. It never asks the server.
func (d *dir) Getattr(_ context.Context, _ gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	d.fs.n.count(opGetattr, 0)
	d.fs.attr(d, &out.Attr)
	out.SetTimeout(d.fs.o.AttrTTL)
	return 0
}

// Lookup implements gofs.NodeLookuper.
func (d *dir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (_ *gofs.Inode, errno syscall.Errno) {
	defer func() { d.fs.n.count(opLookup, errno) }()
	n, errno := d.find(ctx, name)
	if errno != 0 {
		return nil, errno
	}
	d.fs.entryOut(n, out)
	return n.EmbeddedInode(), 0
}

// found is what a look at the bucket says of a name.
type found struct {
	kind      uint32     // S_IFDIR, S_IFREG, S_IFLNK; 0 when there is nothing
	info      store.Info // of the object, or of a directory's marker
	metaKnown bool       // info has the metadata
	marked    bool       // a directory with a marker
}

// find returns the node of a name: the local one where local data are the
// truth or it was looked at within EntryTTL, else as the bucket has it now.
func (d *dir) find(ctx context.Context, name string) (node, syscall.Errno) {
	s := d.fs
	switch e := nameErrno(name); e {
	case 0:
	case syscall.ENAMETOOLONG:
		return nil, e
	default:
		return nil, syscall.ENOENT // no key can have it
	}
	// A look that ran beside a local change of the directory is void. The
	// bound only guards against a directory that never rests.
	for range 100 {
		s.mu.Lock()
		bucket, prefix, ok := s.placeLocked(d)
		if !ok {
			s.mu.Unlock()
			return nil, syscall.ENOENT
		}
		child := d.children[name]
		if child != nil && s.answersLocked(child) {
			child.base().handed = time.Now()
			s.mu.Unlock()
			return child, 0
		}
		seq := d.seq
		recent, isRecent := d.recent[name]
		alone := isRecent && !recent.isDir && time.Since(recent.at) < shadowTTL
		isRecent = isRecent && time.Since(recent.at) < s.o.EntryTTL
		if cf, ok := child.(*file); ok {
			alone = alone || time.Since(cf.alone) < shadowTTL
		}
		s.mu.Unlock()

		begun := time.Now()
		if isRecent && s.o.TrustList {
			begun = recent.at
		}
		var f found
		var err error
		switch {
		case s.allBuckets(d):
			f, err = s.lookBucket(ctx, name)
		case len(prefix)+len(name) > store.MaxKeyLen:
			return nil, syscall.ENAMETOOLONG
		case isRecent:
			f, err = s.lookListed(ctx, bucket, prefix+name, recent)
		case alone:
			f, err = s.lookObject(ctx, bucket, prefix+name)
			if err == nil && f.kind == 0 {
				alone = false
				f, err = s.look(ctx, bucket, prefix+name)
			}
		default:
			f, err = s.look(ctx, bucket, prefix+name)
		}
		if err != nil {
			return nil, errnoOf(err)
		}

		s.mu.Lock()
		if d.seq != seq {
			s.mu.Unlock()
			continue
		}
		n := s.adoptLocked(ctx, d, name, f, begun)
		if nf, ok := n.(*file); ok && !isRecent && !alone {
			nf.alone = begun
		}
		s.mu.Unlock()
		if n == nil {
			return nil, syscall.ENOENT
		}
		return n, 0
	}
	return nil, syscall.EIO
}

// answersLocked reports whether what is known of n locally is good enough to
// answer with.
func (s *filesystem) answersLocked(n node) bool {
	switch n := n.(type) {
	case *dir:
		return time.Since(n.checked) < s.o.EntryTTL || s.localLocked(n)
	case *file:
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.localLocked() || n.metaKnown && time.Since(n.checked) < s.o.AttrTTL
	}
	return false
}

// adoptLocked brings the tree in line with what a look begun at the given time
// found, and returns the node of the name, nil when there is none. A look that
// began before a change that was made here, or before another look, says
// nothing new.
func (s *filesystem) adoptLocked(ctx context.Context, d *dir, name string, f found, begun time.Time) node {
	old := d.children[name]
	if of, ok := old.(*file); ok {
		of.mu.Lock()
		switch {
		case of.localLocked() || !begun.After(of.changed):
			of.mu.Unlock()
			of.handed = time.Now()
			return of
		case begun.Before(of.checked):
			if f.kind == of.kind() && f.metaKnown && !of.metaKnown && sameVersion(of.info, f.info) {
				of.setInfoLocked(f.info, true, of.checked)
			}
			of.mu.Unlock()
			of.handed = time.Now()
			return of
		case f.kind == of.kind() && (of.handles == 0 || sameVersion(of.info, f.info)):
			of.setInfoLocked(f.info, f.metaKnown, begun)
			of.mu.Unlock()
			of.handed = time.Now()
			return of
		}
		of.mu.Unlock()
		s.detachLocked(of)
	} else if od, ok := old.(*dir); ok {
		if f.kind == syscall.S_IFDIR || s.localLocked(od) || begun.Before(od.checked) {
			if f.kind == syscall.S_IFDIR && begun.After(od.changed) && !begun.Before(od.checked) {
				s.setDirLocked(od, f, begun)
			}
			od.handed = time.Now()
			return od
		}
		s.detachLocked(od)
	}
	switch f.kind {
	case 0:
		d.noteAbsentLocked(name, begun)
		return nil
	case syscall.S_IFDIR:
		n := s.newDir()
		s.setDirLocked(n, f, begun)
		s.addLocked(ctx, d, name, n)
		delete(d.absent, name)
		return n
	}
	n := s.newFile(f.kind == syscall.S_IFLNK)
	n.mu.Lock()
	n.stored = true
	n.setInfoLocked(f.info, f.metaKnown, begun)
	n.mu.Unlock()
	s.addLocked(ctx, d, name, n)
	delete(d.absent, name)
	return n
}

func (s *filesystem) newDir() *dir {
	return &dir{
		children: map[string]node{}, absent: map[string]time.Time{},
		attributes: s.attributesOf(nil, s.begun, true),
	}
}

// setDirLocked takes over what is known of a directory's marker.
func (s *filesystem) setDirLocked(d *dir, f found, begun time.Time) {
	d.checked = begun
	d.marked = d.marked || f.marked
	if f.metaKnown {
		d.meta = f.info.Meta
		d.attributes = s.attributesOf(f.info.Meta, f.info.ModTime, true)
	}
}

func (d *dir) noteAbsentLocked(name string, begun time.Time) {
	const remembered = 1000
	if len(d.absent) >= remembered {
		clear(d.absent)
	}
	d.absent[name] = begun
}

// changedLocked notes a local change of a name of d.
func (d *dir) changedLocked(name string, removed bool) {
	d.seq++
	d.attributes.mtime, d.attributes.mtimeSet = time.Now(), false
	delete(d.absent, name)
	delete(d.recent, name)
	if !removed {
		delete(d.removed, name)
		return
	}
	if d.handles > 0 {
		if d.removed == nil {
			d.removed = map[string]uint64{}
		}
		d.removed[name] = d.seq
	}
}

// look asks the bucket for the object key and for anything below key + "/".
func (s *filesystem) look(ctx context.Context, bucket, key string) (found, error) {
	ctx, done := s.request(ctx)
	defer done()
	type listing struct {
		page store.Page
		err  error
	}
	below := make(chan listing, 1)
	go func() {
		p, err := s.store.List(ctx, store.ListRequest{Bucket: bucket, Prefix: key + "/", Recursive: true, Max: 1})
		below <- listing{p, err}
	}()
	info, err := s.store.Head(ctx, bucket, key)
	l := <-below
	switch {
	case l.err == nil && len(l.page.Infos) > 0:
		if l.page.Infos[0].Key != key+"/" {
			return found{kind: syscall.S_IFDIR}, nil
		}
		f, err := s.lookMarker(ctx, bucket, key+"/")
		return f, causeOf(ctx, err)
	case err == nil && (l.err == nil || errors.Is(l.err, store.ErrDenied)):
		// Who may read an object but list nothing still has files.
		return foundFile(info), nil
	case l.err != nil:
		return found{}, causeOf(ctx, l.err)
	case errors.Is(err, store.ErrNotFound):
		return found{}, nil
	}
	return found{}, causeOf(ctx, err)
}

func foundFile(info store.Info) found {
	f := found{kind: syscall.S_IFREG, info: info, metaKnown: true}
	if isLink(info.Meta) {
		f.kind = syscall.S_IFLNK
	}
	return f
}

// lookMarker gets the metadata of the directory marker key, which ends in "/".
// No marker is no error: the directory is there for what is below it.
func (s *filesystem) lookMarker(ctx context.Context, bucket, key string) (found, error) {
	info, err := s.store.Head(ctx, bucket, key)
	switch {
	case err == nil:
		return found{kind: syscall.S_IFDIR, info: info, metaKnown: true, marked: true}, nil
	case errors.Is(err, store.ErrNotFound):
		return found{kind: syscall.S_IFDIR}, nil
	}
	return found{}, err
}

// lookListed is look for a name that a listing has just shown.
func (s *filesystem) lookListed(ctx context.Context, bucket, key string, l listed) (found, error) {
	if s.o.TrustList {
		return foundListed(l), nil
	}
	if !l.isDir {
		return s.lookObject(ctx, bucket, key)
	}
	ctx, done := s.request(ctx)
	defer done()
	f, err := s.lookMarker(ctx, bucket, key+"/")
	return f, causeOf(ctx, err)
}

// lookObject asks for the object key alone.
func (s *filesystem) lookObject(ctx context.Context, bucket, key string) (found, error) {
	ctx, done := s.request(ctx)
	defer done()
	info, err := s.store.Head(ctx, bucket, key)
	switch {
	case err == nil:
		return foundFile(info), nil
	case errors.Is(err, store.ErrNotFound):
		return found{}, nil
	}
	return found{}, causeOf(ctx, err)
}

// foundListed takes a listing's word, without metadata.
func foundListed(l listed) found {
	if l.isDir {
		return found{kind: syscall.S_IFDIR}
	}
	return found{kind: syscall.S_IFREG, info: l.info}
}

// lookBucket asks for a bucket by name, which works where listing them is denied.
func (s *filesystem) lookBucket(ctx context.Context, name string) (found, error) {
	ctx, done := s.request(ctx)
	defer done()
	err := s.store.BucketExists(ctx, name)
	switch {
	case err == nil:
		return found{kind: syscall.S_IFDIR}, nil
	case errors.Is(err, store.ErrNoBucket), errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalidName):
		return found{}, nil
	}
	return found{}, causeOf(ctx, err)
}

// vacant makes sure that name can be made in d: it is allowed, and nothing has
// it as far as a look within NegativeTTL tells. Something in the way is EEXIST.
func (d *dir) vacant(ctx context.Context, name string, isDir bool) syscall.Errno {
	s := d.fs
	if e := s.readOnlyErrno(); e != 0 {
		return e
	}
	s.mu.Lock()
	_, prefix, ok := s.placeLocked(d)
	at, absent := d.absent[name]
	s.mu.Unlock()
	if !ok {
		return syscall.ENOENT
	}
	if e := keyErrno(prefix, name, isDir); e != 0 {
		return e
	}
	// The condition of the write that follows guards against who came since.
	if absent && time.Since(at) < s.o.NegativeTTL {
		return 0
	}
	switch _, errno := d.find(ctx, name); errno {
	case 0:
		return syscall.EEXIST
	case syscall.ENOENT:
		return 0
	default:
		return errno
	}
}

// Mkdir implements gofs.NodeMkdirer: the directory is a marker in the bucket.
func (d *dir) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (_ *gofs.Inode, errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opMkdir, errno) }()
	if errno := d.vacant(ctx, name, true); errno != 0 {
		return nil, errno
	}
	change, errno := s.enter(ctx, d, name)
	if errno != 0 {
		return nil, errno
	}
	defer change.end()
	c, done := s.request(ctx)
	defer done()
	f := found{kind: syscall.S_IFDIR, metaKnown: true, marked: true}
	if s.allBuckets(d) {
		if err := s.store.CreateBucket(c, name); err != nil {
			return nil, errnoOf(causeOf(c, err))
		}
		f.marked = false
	} else {
		bucket, prefix, ok := s.place(d)
		if !ok {
			return nil, syscall.ENOENT
		}
		a := s.newAttributes(ctx, mode)
		f.info = store.Info{Meta: s.metaOf(nil, a, syscall.S_IFDIR), ModTime: a.mtime}
		err := s.putMarker(c, bucket, prefix+name+"/", f.info.Meta, store.Cond{IfAbsent: true})
		if err != nil {
			return nil, errnoOf(causeOf(c, err))
		}
	}
	s.mu.Lock()
	n := s.newDir()
	s.setDirLocked(n, f, time.Now())
	s.detachNameLocked(d, name)
	s.addLocked(ctx, d, name, n)
	d.changedLocked(name, false)
	s.mu.Unlock()
	s.entryOut(n, out)
	return n.EmbeddedInode(), 0
}

// detachNameLocked detaches whatever node has the name.
func (s *filesystem) detachNameLocked(d *dir, name string) {
	if n := d.children[name]; n != nil {
		s.detachLocked(n)
	}
}

// newAttributes are those of something the caller makes now.
func (s *filesystem) newAttributes(ctx context.Context, mode uint32) attributes {
	a := attributes{perm: mode & 0o7777, uid: s.o.UID, gid: s.o.GID, mtime: time.Now()}
	if c, ok := fuse.FromContext(ctx); ok {
		a.uid, a.gid = c.Uid, c.Gid
	}
	return a
}

// Mknod implements gofs.NodeMknoder for regular files; there is nothing in S3
// that could be a device, a pipe or a socket.
func (d *dir) Mknod(ctx context.Context, name string, mode, _ uint32, out *fuse.EntryOut) (_ *gofs.Inode, errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opMknod, errno) }()
	if mode&syscall.S_IFMT != syscall.S_IFREG || s.allBuckets(d) {
		return nil, syscall.EPERM
	}
	if errno := d.vacant(ctx, name, false); errno != 0 {
		return nil, errno
	}
	f, errno := s.createFile(ctx, d, name, mode, true)
	if errno != 0 {
		return nil, errno
	}
	if errno := s.flush(ctx, f); errno != 0 {
		s.abandon(f)
		return nil, errno
	}
	s.entryOut(f, out)
	return f.EmbeddedInode(), 0
}

// Link implements gofs.NodeLinker: S3 has no second name for an object.
func (d *dir) Link(context.Context, gofs.InodeEmbedder, string, *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

// Create implements gofs.NodeCreater. Nothing appears in the bucket before the
// file is closed or synced.
func (d *dir) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (_ *gofs.Inode, _ gofs.FileHandle, _ uint32, errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opCreate, errno) }()
	if s.allBuckets(d) {
		return nil, nil, 0, syscall.EPERM
	}
	exclusive := flags&syscall.O_EXCL != 0
	errno = d.vacant(ctx, name, false)
	if errno == syscall.EEXIST && !exclusive {
		// It came into being since the kernel saw that it was not there. Only
		// the kernel checks permissions and follows links: it looks again.
		return nil, nil, 0, syscall.ESTALE
	}
	if errno != 0 {
		return nil, nil, 0, errno
	}
	f, errno := s.createFile(ctx, d, name, mode, exclusive)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	f.mu.Lock()
	f.pinLocked(writable(flags))
	f.mu.Unlock()
	h := f.newHandle(writable(flags))
	s.entryOut(f, out)
	return f.EmbeddedInode(), h, 0, 0
}

// createFile makes a file that exists only here.
func (s *filesystem) createFile(ctx context.Context, d *dir, name string, mode uint32, exclusive bool) (*file, syscall.Errno) {
	sp, err := s.spool.Create()
	if err != nil {
		return nil, errnoOf(err)
	}
	f := s.newFile(false)
	f.mu.Lock()
	f.spool, f.dirtyData, f.exclusive, f.metaKnown = sp, true, exclusive, true
	f.attributes = s.newAttributes(ctx, mode)
	f.mu.Unlock()
	s.mu.Lock()
	_, _, ok := s.placeLocked(d)
	if ok {
		s.detachNameLocked(d, name)
		s.addLocked(ctx, d, name, f)
		s.dirty[f] = struct{}{}
		f.alone = time.Now()
		d.changedLocked(name, false)
	}
	s.mu.Unlock()
	if !ok {
		return nil, errnoOf(errors.Join(store.ErrNotFound, sp.Discard()))
	}
	if err := s.journal(f); err != nil {
		s.abandon(f)
		return nil, errnoOf(err)
	}
	return f, 0
}

// abandon undoes createFile.
func (s *filesystem) abandon(f *file) {
	s.mu.Lock()
	f.parent.changedLocked(f.name, true)
	s.detachLocked(f)
	f.unlinked = true
	delete(s.dirty, f)
	s.mu.Unlock()
	f.mu.Lock()
	f.dirtyData, f.dirtyMeta = false, false
	f.mu.Unlock()
	s.mustJournal(f)
	f.mu.Lock()
	f.dropSpoolLocked()
	f.mu.Unlock()
}

// Symlink implements gofs.NodeSymlinker.
func (d *dir) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (_ *gofs.Inode, errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opSymlink, errno) }()
	if s.allBuckets(d) {
		return nil, syscall.EPERM
	}
	if len(target) > maxLink {
		return nil, syscall.ENAMETOOLONG
	}
	if errno := d.vacant(ctx, name, false); errno != 0 {
		return nil, errno
	}
	change, errno := s.enter(ctx, d, name)
	if errno != 0 {
		return nil, errno
	}
	defer change.end()
	c, done := s.request(ctx)
	defer done()
	bucket, prefix, ok := s.place(d)
	if !ok {
		return nil, syscall.ENOENT
	}
	a := s.newAttributes(ctx, 0o777)
	meta := s.metaOf(nil, a, syscall.S_IFLNK)
	begun := time.Now()
	info, err := s.putBytes(c, bucket, prefix+name, []byte(target), meta, "", store.Cond{IfAbsent: true})
	if err != nil {
		return nil, errnoOf(causeOf(c, err))
	}
	n := s.newFile(true)
	n.mu.Lock()
	n.stored, n.target, n.targetETag = true, target, info.ETag
	n.setInfoLocked(info, true, begun)
	n.attributes = a
	n.mu.Unlock()
	s.mu.Lock()
	s.detachNameLocked(d, name)
	s.addLocked(ctx, d, name, n)
	d.changedLocked(name, false)
	s.mu.Unlock()
	s.entryOut(n, out)
	return n.EmbeddedInode(), 0
}

// putMarker makes a directory exist by itself.
func (s *filesystem) putMarker(ctx context.Context, bucket, key string, meta map[string]string, c store.Cond) error {
	_, err := s.putBytes(ctx, bucket, key, nil, meta, dirContentType, c)
	return err
}

// dirContentType is what s3fs-fuse and others give directory markers.
const dirContentType = "application/x-directory"

// keep makes sure that d stays a directory when its child name goes: a
// directory that a program has in use does not vanish with its last file, as
// one that is only implied by keys would.
func (d *dir) keep(ctx context.Context, name string) error {
	s := d.fs
	s.mu.Lock()
	bucket, prefix, ok := s.placeLocked(d)
	fine := !ok || d == s.root || s.isBucket(d) || d.marked || d.witness != "" && d.witness != name
	meta := s.metaOf(d.meta, d.attributes, syscall.S_IFDIR)
	s.mu.Unlock()
	if fine {
		return nil
	}
	p, err := s.store.List(ctx, store.ListRequest{Bucket: bucket, Prefix: prefix})
	if err != nil {
		return err
	}
	marked, witness := false, ""
	for _, info := range p.Infos {
		n := strings.TrimSuffix(strings.TrimPrefix(info.Key, prefix), "/")
		switch {
		case info.Key == prefix:
			marked = true
		case n != name:
			witness = n
		}
	}
	if !marked && witness == "" {
		if err := s.putMarker(ctx, bucket, prefix, meta, store.Cond{}); err != nil {
			return err
		}
		marked = true
	}
	s.mu.Lock()
	d.marked, d.witness = marked, witness
	s.mu.Unlock()
	return nil
}

// Unlink implements gofs.NodeUnlinker.
func (d *dir) Unlink(ctx context.Context, name string) (errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opUnlink, errno) }()
	if e := s.readOnlyErrno(); e != 0 {
		return e
	}
	n, errno := d.known(ctx, name)
	if errno != 0 {
		return errno
	}
	f, ok := n.(*file)
	if !ok {
		return syscall.EISDIR
	}
	change, errno := s.enter(ctx, nil, "", f)
	if errno != 0 {
		return errno
	}
	defer change.end()
	c, done := s.unbounded(ctx) // what handles still need may be large
	defer done()
	defer f.removing()()
	if err := f.up.Acquire(c, 1); err != nil {
		return errnoOf(causeOf(c, err))
	}
	defer f.up.Release(1)
	s.preserve(ctx, f)
	bucket, key, ok := s.place(f)
	if !ok {
		return syscall.ENOENT
	}
	if err := d.keep(c, name); err != nil {
		return errnoOf(causeOf(c, err))
	}
	f.mu.Lock()
	stored, attempted := f.stored || f.overwrite, f.attempted
	f.mu.Unlock()
	if stored || attempted {
		err := s.store.Delete(c, bucket, key)
		if err != nil && !stored {
			// Perhaps there is nothing that would have to go.
			if _, herr := s.store.Head(c, bucket, key); errors.Is(herr, store.ErrNotFound) {
				err = nil
			}
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return errnoOf(causeOf(c, err))
		}
		s.cache.Invalidate(bucket, key)
	}
	s.unlinked(d, name, f)
	return 0
}

// unlinked takes a file out of the tree for good. What its handles still write
// goes nowhere.
func (s *filesystem) unlinked(d *dir, name string, f *file) {
	s.mu.Lock()
	s.detachLocked(f)
	f.unlinked = true
	delete(s.dirty, f)
	d.changedLocked(name, true)
	f.mu.Lock()
	f.dirtyData, f.dirtyMeta = false, false
	f.mu.Unlock()
	s.mu.Unlock()
	s.mustJournal(f)
	f.mu.Lock()
	if f.handles == 0 {
		f.dropSpoolLocked()
	}
	f.mu.Unlock()
}

// Rmdir implements gofs.NodeRmdirer, from a fresh look at what is below.
func (d *dir) Rmdir(ctx context.Context, name string) (errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opRmdir, errno) }()
	if e := s.readOnlyErrno(); e != 0 {
		return e
	}
	n, errno := d.known(ctx, name)
	if errno != 0 {
		return errno
	}
	sub, ok := n.(*dir)
	if !ok {
		return syscall.ENOTDIR
	}
	change, errno := s.enter(ctx, nil, "", sub)
	if errno != 0 {
		return errno
	}
	defer change.end()
	c, done := s.request(ctx)
	defer done()
	if s.allBuckets(d) {
		s.mu.Lock()
		local := s.localLocked(sub)
		s.mu.Unlock()
		if local {
			return syscall.ENOTEMPTY
		}
		if err := s.store.RemoveBucket(c, name); err != nil && !errors.Is(err, store.ErrNoBucket) {
			return errnoOf(causeOf(c, err))
		}
	} else {
		bucket, prefix, ok := s.place(sub)
		if !ok {
			return syscall.ENOENT
		}
		if errno := s.emptyErrno(c, sub, bucket, prefix); errno != 0 {
			return errno
		}
		if err := d.keep(c, name); err != nil {
			return errnoOf(causeOf(c, err))
		}
		if err := s.store.Delete(c, bucket, prefix); err != nil && !errors.Is(err, store.ErrNotFound) {
			return errnoOf(causeOf(c, err))
		}
	}
	s.mu.Lock()
	s.detachLocked(sub)
	d.changedLocked(name, true)
	s.mu.Unlock()
	return 0
}

// emptyErrno is ENOTEMPTY unless the bucket has nothing below prefix but the
// marker and nothing is waiting to be stored there.
func (s *filesystem) emptyErrno(ctx context.Context, d *dir, bucket, prefix string) syscall.Errno {
	s.mu.Lock()
	local := s.localLocked(d)
	s.mu.Unlock()
	if local {
		return syscall.ENOTEMPTY
	}
	p, err := s.store.List(ctx, store.ListRequest{Bucket: bucket, Prefix: prefix, Recursive: true, Max: 2})
	if err != nil {
		return errnoOf(causeOf(ctx, err))
	}
	for _, info := range p.Infos {
		if info.Key != prefix {
			return syscall.ENOTEMPTY
		}
	}
	return 0
}

// Setattr implements gofs.NodeSetattrer: the marker carries the attributes.
func (d *dir) Setattr(ctx context.Context, _ gofs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) (errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opSetattr, errno) }()
	if e := s.readOnlyErrno(); e != 0 {
		return e
	}
	s.mu.Lock()
	a := d.attributes
	meta := d.meta
	s.mu.Unlock()
	if a.set(in) {
		if errno := d.setMeta(ctx, s.metaOf(meta, a, syscall.S_IFDIR)); errno != 0 {
			return errno
		}
		s.mu.Lock()
		d.attributes = a
		s.mu.Unlock()
	}
	s.attr(d, &out.Attr)
	out.SetTimeout(s.o.AttrTTL)
	return 0
}

// setMeta writes the metadata of d's marker, making one when there is none. A
// directory that can have no marker keeps its attributes in memory.
func (d *dir) setMeta(ctx context.Context, meta map[string]string) syscall.Errno {
	s := d.fs
	if metaSize(meta) > maxMeta {
		return syscall.ENOSPC
	}
	change, errno := s.enter(ctx, nil, "", d)
	if errno != 0 {
		return errno
	}
	defer change.end()
	c, done := s.request(ctx)
	defer done()
	bucket, prefix, ok := s.place(d)
	if !ok {
		return syscall.ENOENT
	}
	if d != s.root && !s.isBucketSafe(d) {
		if err := s.replaceMarker(c, bucket, prefix, meta); err != nil {
			return errnoOf(causeOf(c, err))
		}
	}
	s.mu.Lock()
	d.meta, d.changed = meta, time.Now()
	d.marked = d != s.root && !s.isBucket(d)
	s.mu.Unlock()
	return 0
}

func (s *filesystem) isBucketSafe(d *dir) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isBucket(d)
}

// replaceMarker writes a marker anew; one that has a body keeps it.
func (s *filesystem) replaceMarker(ctx context.Context, bucket, key string, meta map[string]string) error {
	info, err := s.store.Head(ctx, bucket, key)
	if err == nil && info.Size > 0 {
		_, err = s.store.Copy(ctx, store.CopyRequest{
			Bucket: bucket, Key: key, DstKey: key, SrcETag: info.ETag, Meta: meta, ContentType: info.ContentType,
		})
		return err
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return s.putMarker(ctx, bucket, key, meta, store.Cond{})
}

// set takes over what a SETATTR asks for except the size, and reports whether
// that is anything kept in metadata.
func (a *attributes) set(in *fuse.SetAttrIn) bool {
	changed := false
	if m, ok := in.GetMode(); ok {
		a.perm, changed = m&0o7777, true
	}
	if u, ok := in.GetUID(); ok {
		a.uid, changed = u, true
	}
	if g, ok := in.GetGID(); ok {
		a.gid, changed = g, true
	}
	// With a size the kernel sends the time of the truncation.
	if _, truncates := in.GetSize(); truncates {
		return changed
	}
	if a.atime.IsZero() {
		a.atime = a.mtime // as told so far, should only mtime be set
	}
	if t, ok := in.GetATime(); ok {
		a.atime, changed = t, true
	}
	if t, ok := in.GetMTime(); ok {
		a.mtime, a.mtimeSet, changed = t, true, true
	}
	if a.atime.Equal(a.mtime) {
		a.atime = time.Time{}
	}
	return changed
}
