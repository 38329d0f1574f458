package fs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sync/semaphore"

	"s3rdmafs/cache"
	"s3rdmafs/spool"
	"s3rdmafs/store"
)

// forgetGrace is how long a node stays in the tree after the kernel forgot
// it. A LOOKUP answered at the same time may be about to hand it out again.
const forgetGrace = 10 * time.Second

// filesystem is one mount.
type filesystem struct {
	o     Options
	log   *slog.Logger
	store *store.Store
	cache *cache.Cache
	spool *spool.Spool // nil when read-only
	root  *dir
	mount *Mounted
	n     counters

	recovery recoveryCounters
	begun    time.Time

	// life ends when the kernel's connection does; nobody waits then.
	life context.Context
	end  context.CancelFunc
	// storing ends when an unmount has waited long enough for uploads.
	storing       context.Context
	cancelStoring context.CancelFunc

	dirRename  *semaphore.Weighted
	parts      *semaphore.Weighted // uploads of single parts
	background sync.WaitGroup      // uploads nobody waits for
	noCond     atomic.Bool         // the server knows no conditional writes
	// heapStaging lets one transfer at a time that is too large for the cache
	// use ordinary memory.
	heapStaging sync.Mutex

	mu        sync.Mutex
	gate      gate
	inos      map[uint64]node // every node with its inode number
	gen       uint64
	dirty     map[*file]struct{}
	shelved   []error // files that another writer overtook, and where they are kept
	open      map[*handle]struct{}
	forgotten []forgottenNode // in order of time
	skipped   map[string]struct{}
}

type forgottenNode struct {
	n  node
	at time.Time
}

// node is a dir or a file.
type node interface {
	gofs.InodeEmbedder
	base() *entry
	// kind is the file type as in st_mode.
	kind() uint32
}

// entry is a node's place in the tree.
type entry struct {
	gofs.Inode
	fs *filesystem

	// Guarded by filesystem.mu.
	ino    uint64
	parent *dir
	name   string
	dead   bool      // the name means something else, or nothing, by now
	handed time.Time // when it was last given to the kernel
}

func (e *entry) base() *entry { return e }

// placeLocked is the bucket and the key of a file, or the bucket and the prefix
// of a dir; false when no name leads there any more. Caller holds filesystem.mu.
func (s *filesystem) placeLocked(n node) (bucket, key string, ok bool) {
	for at := n; at != node(s.root); at = at.base().parent {
		if at.base().dead {
			return "", "", false
		}
	}
	bucket, key = s.lastPlaceLocked(n)
	return bucket, key, true
}

// lastPlaceLocked is placeLocked also for what no name leads to any more.
func (s *filesystem) lastPlaceLocked(n node) (bucket, key string) {
	e := n.base()
	d, isDir := n.(*dir)
	switch {
	case isDir && d == s.root:
		return s.o.Bucket, s.o.Prefix
	case isDir && s.isBucket(d):
		return e.name, ""
	}
	bucket, prefix := s.lastPlaceLocked(e.parent)
	if isDir {
		return bucket, prefix + e.name + "/"
	}
	return bucket, prefix + e.name
}

func (s *filesystem) place(n node) (bucket, key string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.placeLocked(n)
}

// allBuckets reports whether d is the root of a mount of all buckets.
func (s *filesystem) allBuckets(d *dir) bool { return d == s.root && s.o.Bucket == "" }

// isBucket reports whether d is a bucket in a mount of all buckets.
func (s *filesystem) isBucket(d *dir) bool { return s.o.Bucket == "" && d.parent == s.root }

// inoLocked is the inode number a new node at a path would get: its hash,
// unless a live node has that, as after a rename or while an unlinked file is
// open.
func (s *filesystem) inoLocked(bucket, path string) uint64 {
	for h := hashPath(bucket, path); ; h = h*0x9e3779b97f4a7c15 + 1 {
		// 0, 1 and the highest are reserved.
		if h <= fuse.FUSE_ROOT_ID || h == ^uint64(0) {
			continue
		}
		if s.inos[h] == nil {
			return h
		}
	}
}

// childPathLocked is bucket and path of the name in d, as for inoLocked.
func (s *filesystem) childPathLocked(d *dir, name string) (bucket, path string) {
	bucket, prefix, _ := s.placeLocked(d)
	return bucket, prefix + name
}

// addLocked puts n under a name of d and makes its inode. An earlier node of
// that name must be gone.
func (s *filesystem) addLocked(ctx context.Context, d *dir, name string, n node) {
	e := n.base()
	e.fs, e.parent, e.name = s, d, name
	bucket, path := s.childPathLocked(d, name)
	e.ino = s.inoLocked(bucket, path)
	e.handed = time.Now()
	s.inos[e.ino] = n
	s.gen++
	d.children[name] = n
	d.NewInode(ctx, n, gofs.StableAttr{Mode: n.kind(), Ino: e.ino, Gen: s.gen})
}

// detachLocked takes a node out of the tree. Its handles stay usable.
func (s *filesystem) detachLocked(n node) {
	e := n.base()
	if e.dead || e.parent == nil {
		return
	}
	if e.parent.children[e.name] == n {
		delete(e.parent.children, e.name)
	}
	e.dead = true
}

// forget is told that the kernel holds n no more.
func (s *filesystem) forget(n node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.forgotten = append(s.forgotten, forgottenNode{n, now})
	for len(s.forgotten) > 0 && now.Sub(s.forgotten[0].at) > forgetGrace {
		old := s.forgotten[0]
		s.forgotten = s.forgotten[1:]
		if !old.n.base().handed.After(old.at) {
			s.dropLocked(old.n)
		}
	}
}

// dropLocked frees a node the kernel does not know, unless something local
// depends on it.
func (s *filesystem) dropLocked(n node) {
	e := n.base()
	if !e.Forgotten() || n == node(s.root) {
		return
	}
	switch n := n.(type) {
	case *dir:
		if len(n.children) > 0 && !e.dead {
			return
		}
	case *file:
		if _, dirty := s.dirty[n]; dirty {
			return
		}
	}
	parent, wasLive := e.parent, !e.dead
	s.detachLocked(n)
	if s.inos[e.ino] == n {
		delete(s.inos, e.ino)
	}
	if wasLive && parent != nil {
		s.dropLocked(parent)
	}
}

// localLocked reports whether d or something below holds data or names that
// are not in the bucket.
func (s *filesystem) localLocked(d *dir) bool {
	for _, n := range d.children {
		switch n := n.(type) {
		case *dir:
			if s.localLocked(n) {
				return true
			}
		case *file:
			if _, dirty := s.dirty[n]; dirty {
				return true
			}
		}
	}
	return false
}

// filesLocked lists the live files below d.
func (s *filesystem) filesLocked(d *dir) []*file {
	var out []*file
	for _, n := range d.children {
		switch n := n.(type) {
		case *dir:
			out = append(out, s.filesLocked(n)...)
		case *file:
			out = append(out, n)
		}
	}
	return out
}

// skip counts a key that cannot be shown, and tells of it once.
func (s *filesystem) skip(bucket, key string) {
	const remembered = 10000
	id := bucket + "/" + key
	s.mu.Lock()
	_, known := s.skipped[id]
	if !known && len(s.skipped) < remembered {
		s.skipped[id] = struct{}{}
	} else {
		known = true
	}
	s.mu.Unlock()
	if !known {
		s.n.skipped.Add(1)
		s.log.Warn("key cannot be a path and is not shown", "bucket", bucket, "key", key)
	}
}

// entryOut fills the answer that names n.
func (s *filesystem) entryOut(n node, out *fuse.EntryOut) {
	s.attr(n, &out.Attr)
	out.SetAttrTimeout(s.o.AttrTTL)
	out.SetEntryTimeout(s.o.EntryTTL)
}

// attr fills the attributes of n as known.
func (s *filesystem) attr(n node, out *fuse.Attr) {
	s.mu.Lock()
	dead := n.base().dead
	ino := n.base().ino
	s.mu.Unlock()
	out.Ino = ino
	out.Mode = n.kind()
	out.Nlink = 1
	if dead {
		out.Nlink = 0
	}
	out.Blksize = blockSize
	switch n := n.(type) {
	case *dir:
		s.mu.Lock()
		n.attributes.apply(out)
		s.mu.Unlock()
	case *file:
		n.mu.Lock()
		n.attributes.apply(out)
		out.Size = uint64(n.sizeLocked())
		n.mu.Unlock()
	}
	out.Blocks = (out.Size + 511) / 512
}

// blockSize is the unit in which programs should read and write, bytes.
const blockSize = 1 << 20

// statfs answers from memory: the bucket has no end that can be known.
func (s *filesystem) statfs(out *fuse.StatfsOut) {
	const size, inodes = 1 << 60, 1 << 40 // 1 EiB
	out.Bsize, out.Frsize = blockSize, 4096
	out.Blocks = size / 4096
	out.Bfree, out.Bavail = out.Blocks, out.Blocks
	out.Files, out.Ffree = inodes, inodes
	out.NameLen = maxNameLen
}

// readOnlyErrno is EROFS on a read-only mount.
func (s *filesystem) readOnlyErrno() syscall.Errno {
	if s.o.ReadOnly {
		return syscall.EROFS
	}
	return 0
}
