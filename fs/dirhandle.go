package fs

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"s3rdmafs/store"
)

// lookAhead is how many objects of a listing are asked for their metadata at
// once when the kernel wants attributes along with names.
const lookAhead = 32

// dirHandle is an open directory: a listing that is fetched page by page as it
// is read. Offset n stands behind the n-th entry. go-fuse serializes calls.
type dirHandle struct {
	d *dir

	entries []dirent // what was listed so far, "." and ".." first
	pos     int
	pending []listing // objects that may turn out to be directories on the next page
	token   string
	started bool
	ended   bool
}

// dirent is an entry of an open directory.
type dirent struct {
	listing
	seq  uint64 // dir.seq before the listing of the page
	at   time.Time
	look *look // what its metadata are, when asked for
}

// listing is what one name in a page of keys amounts to.
type listing struct {
	name  string
	isDir bool
	info  store.Info
}

// look is what a look at the metadata of an entry found.
type look struct {
	found found
	err   error
	begun time.Time
}

var (
	_ gofs.FileReaddirenter = (*dirHandle)(nil)
	_ gofs.FileLookuper     = (*dirHandle)(nil)
	_ gofs.FileSeekdirer    = (*dirHandle)(nil)
	_ gofs.FileReleasedirer = (*dirHandle)(nil)
	_ gofs.FileFsyncdirer   = (*dirHandle)(nil)
)

// OpendirHandle implements gofs.NodeOpendirHandler.
func (d *dir) OpendirHandle(context.Context, uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	s := d.fs
	s.n.handles.Add(1)
	s.mu.Lock()
	d.handles++
	s.mu.Unlock()
	return &dirHandle{d: d}, 0, 0
}

// Releasedir implements gofs.FileReleasedirer.
func (h *dirHandle) Releasedir(context.Context, uint32) {
	s := h.d.fs
	s.n.handles.Add(-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.d.handles--; h.d.handles == 0 {
		h.d.removed = nil
	}
}

// Fsyncdir implements gofs.FileFsyncdirer; see dir.Fsync.
func (h *dirHandle) Fsyncdir(context.Context, uint32) syscall.Errno {
	h.d.fs.n.count(opFsync, 0)
	return 0
}

// Seekdir implements gofs.FileSeekdirer. To the start is rewinddir, which
// lists anew.
func (h *dirHandle) Seekdir(_ context.Context, off uint64) syscall.Errno {
	if off == 0 {
		*h = dirHandle{d: h.d}
		return 0
	}
	if off > uint64(len(h.entries)) {
		return syscall.EINVAL
	}
	h.pos = int(off)
	return 0
}

// Readdirent implements gofs.FileReaddirenter.
func (h *dirHandle) Readdirent(ctx context.Context) (_ *fuse.DirEntry, errno syscall.Errno) {
	s := h.d.fs
	if h.pos == 0 {
		defer func() { s.n.count(opReaddir, errno) }()
	}
	for {
		if h.pos >= len(h.entries) {
			if h.ended {
				return nil, 0
			}
			if errno := h.page(ctx); errno != 0 {
				return nil, errno
			}
			continue
		}
		e := &h.entries[h.pos]
		h.pos++
		de := &fuse.DirEntry{Name: e.name, Off: uint64(h.pos)}
		if h.pos <= 2 {
			h.dots(de)
			return de, 0
		}
		s.mu.Lock()
		gone := h.d.removed[e.name] > e.seq
		if !gone {
			h.typeLocked(e, de)
		}
		s.mu.Unlock()
		if !gone {
			return de, 0
		}
	}
}

// dots fills "." and "..".
func (h *dirHandle) dots(de *fuse.DirEntry) {
	s := h.d.fs
	s.mu.Lock()
	defer s.mu.Unlock()
	de.Mode = syscall.S_IFDIR
	of := h.d
	if de.Name == ".." && h.d.parent != nil {
		of = h.d.parent
	}
	de.Ino = max(of.ino, fuse.FUSE_ROOT_ID)
}

// typeLocked fills the inode number and the type of an entry. The type of a
// small object is left open: it may be a symbolic link, which only its
// metadata tell.
func (h *dirHandle) typeLocked(e *dirent, de *fuse.DirEntry) {
	s := h.d.fs
	if n := h.d.children[e.name]; n != nil {
		de.Ino = n.base().ino
		de.Mode = n.kind()
		f, ok := n.(*file)
		if !ok || e.isDir {
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.localLocked() || f.metaKnown && sameVersion(f.info, e.info) {
			return
		}
	} else {
		de.Ino = s.inoLocked(s.childPathLocked(h.d, e.name))
	}
	switch {
	case e.isDir:
		de.Mode = syscall.S_IFDIR
	case s.o.TrustList || e.info.Size == 0 || e.info.Size > maxLink:
		de.Mode = syscall.S_IFREG
	default:
		de.Mode = 0
	}
}

// page fetches the next part of the listing.
func (h *dirHandle) page(ctx context.Context) syscall.Errno {
	s, d := h.d.fs, h.d
	s.mu.Lock()
	bucket, prefix, ok := s.placeLocked(d)
	seq := d.seq
	s.mu.Unlock()
	if !h.started {
		h.entries = []dirent{{listing: listing{name: "."}}, {listing: listing{name: ".."}}}
		h.started = true
		return 0
	}
	if !ok {
		h.ended = true // removed: nothing is in it
		return 0
	}
	c, done := s.request(ctx)
	defer done()
	at := time.Now()
	var found []listing
	if s.allBuckets(d) {
		buckets, err := s.store.Buckets(c)
		switch {
		case err == nil:
		case errors.Is(err, store.ErrDenied):
			// Buckets can be looked up by name, and those in use are known.
			s.mu.Lock()
			for name := range d.children {
				buckets = append(buckets, store.Bucket{Name: name})
			}
			s.mu.Unlock()
		default:
			return errnoOf(causeOf(c, err))
		}
		for _, b := range buckets {
			found = append(found, listing{name: b.Name, isDir: true})
		}
		h.ended = true
	} else {
		p, err := s.store.List(c, store.ListRequest{Bucket: bucket, Prefix: prefix, Token: h.token})
		if err != nil {
			return errnoOf(causeOf(c, err))
		}
		h.token = p.Next
		h.ended = p.Next == ""
		var skipped []string
		found, h.pending, skipped = merge(prefix, p, h.pending)
		for _, key := range skipped {
			s.skip(bucket, key)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range found {
		h.entries = append(h.entries, dirent{listing: l, seq: seq, at: at})
		if d.seq == seq {
			s.rememberLocked(d, l.name, listed{info: l.info, isDir: l.isDir, at: at})
		}
	}
	if h.ended {
		h.addLocalLocked()
	}
	return 0
}

// addLocalLocked appends the files that are not in the bucket yet.
func (h *dirHandle) addLocalLocked() {
	local := map[string]*file{}
	for name, n := range h.d.children {
		if f, ok := n.(*file); ok {
			if _, dirty := h.d.fs.dirty[f]; dirty {
				local[name] = f
			}
		}
	}
	if len(local) == 0 {
		return
	}
	for _, e := range h.entries {
		delete(local, e.name)
	}
	for name := range local {
		h.entries = append(h.entries, dirent{listing: listing{name: name}, seq: h.d.seq})
	}
}

// merge makes the names of a directory out of a page of its listing. An object
// "a" and the prefix "a/" are one name, the directory; since names such as
// "a-b" sort between the two, objects whose prefix may be on the next page are
// returned as pending and given back with it. skipped are keys that cannot be
// names.
func merge(prefix string, p store.Page, pending []listing) (found, held []listing, skipped []string) {
	dirs := map[string]bool{}
	objects := pending
	last := ""
	for _, info := range p.Infos {
		last = info.Key
		name, isDir := strings.CutSuffix(strings.TrimPrefix(info.Key, prefix), "/")
		switch {
		case name == "" && !isDir: // the marker of the directory itself
		case keyErrno(prefix, name, isDir) != 0:
			skipped = append(skipped, info.Key)
		case isDir:
			dirs[name] = true
			found = append(found, listing{name: name, isDir: true})
		default:
			objects = append(objects, listing{name: name, info: info})
		}
	}
	for _, o := range objects {
		switch {
		case dirs[o.name]:
		case p.Next != "" && prefix+o.name+"/" > last:
			held = append(held, o)
		default:
			found = append(found, o)
		}
	}
	return found, held, skipped
}

// Lookup implements gofs.FileLookuper: the attributes that READDIRPLUS gives
// along with the entry just read.
func (h *dirHandle) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	s, d := h.d.fs, h.d
	i := h.pos - 1
	if i < 0 || h.entries[i].name != name {
		return nil, syscall.ENOENT
	}
	h.ask(ctx, i)
	e := &h.entries[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.look == nil {
		if child := d.children[name]; child != nil {
			child.base().handed = time.Now()
			return s.handOut(child, out), 0
		}
		if e.at.IsZero() {
			return nil, syscall.ENOENT // was local, and is gone
		}
		e.look = &look{found: foundListed(listed{info: e.info, isDir: e.isDir}), begun: e.at}
	}
	// A name that changed here since it was listed, and one that could not be
	// looked at, get no attributes; the kernel asks again.
	if e.look.err != nil || e.look.found.kind == 0 || h.old(e.look.begun) || d.seq != e.seq || d.dead {
		return nil, syscall.ENOENT
	}
	n := s.adoptLocked(ctx, d, name, e.look.found, e.look.begun)
	if n == nil {
		return nil, syscall.ENOENT
	}
	return s.handOut(n, out), 0
}

// handOut is entryOut for who holds filesystem.mu.
func (s *filesystem) handOut(n node, out *fuse.EntryOut) *gofs.Inode {
	s.mu.Unlock()
	s.entryOut(n, out)
	s.mu.Lock()
	return n.EmbeddedInode()
}

// ask sends for the metadata of entry i and the ones behind it, where they are
// needed and not known.
func (h *dirHandle) ask(ctx context.Context, i int) {
	s, d := h.d.fs, h.d
	if s.o.TrustList {
		return
	}
	if l := h.entries[i].look; l != nil && !h.old(l.begun) {
		return
	}
	bucket, prefix, ok := s.place(d)
	if !ok {
		return
	}
	var all []*dirent
	s.mu.Lock()
	for j := i; j < len(h.entries) && len(all) < lookAhead; j++ {
		e := &h.entries[j]
		if e.look != nil && h.old(e.look.begun) {
			e.look = nil
		}
		if e.look == nil && h.unknownLocked(e) {
			e.look = new(look)
			all = append(all, e)
		}
	}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, e := range all {
		wg.Go(func() {
			c, done := s.request(ctx)
			defer done()
			e.look.begun = time.Now()
			if s.allBuckets(d) {
				e.look.found = found{kind: syscall.S_IFDIR}
				return
			}
			l := listed{info: e.info, isDir: e.isDir}
			e.look.found, e.look.err = s.lookListed(c, bucket, prefix+e.name, l)
		})
	}
	wg.Wait()
}

// old reports whether what was seen at a time is too long ago to be told as
// news: a program may read a directory at its leisure. It is never as short as
// a look takes.
func (h *dirHandle) old(at time.Time) bool {
	return time.Since(at) > max(h.d.fs.o.EntryTTL, time.Second)
}

// unknownLocked reports whether a node for e needs a look at its metadata.
func (h *dirHandle) unknownLocked(e *dirent) bool {
	if e.at.IsZero() {
		return false // local
	}
	switch n := h.d.children[e.name].(type) {
	case *dir:
		return !e.isDir || time.Since(n.checked) > h.d.fs.o.EntryTTL
	case *file:
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.localLocked() {
			return false
		}
		if !e.isDir && n.metaKnown && sameVersion(n.info, e.info) && n.info.ModTime.Unix() == e.info.ModTime.Unix() {
			if n.checked.Before(e.at) {
				n.checked = e.at // the listing has confirmed it
			}
			return h.old(n.checked)
		}
	}
	return true
}
