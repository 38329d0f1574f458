package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"s3rdmafs/cache"
	"s3rdmafs/store"
)

// Options of a mount. Store and Cache are required and stay the caller's: close
// them after Unmount or Wait has returned.
type Options struct {
	Store *store.Store
	Cache *cache.Cache

	// Bucket is the bucket to show; "" shows every bucket as a directory.
	Bucket string
	// Prefix restricts the mount to the keys below it; a trailing "/" is added
	// when missing. It needs Bucket. No request leaves the prefix.
	Prefix string

	ReadOnly bool
	// AllowOther lets other users than the one mounting use the mount.
	AllowOther bool

	// UID and GID own what carries no owner in its metadata.
	UID, GID uint32
	// FileMode and DirMode are the permissions of what carries none in its
	// metadata; 0 means 0644 and 0755.
	FileMode, DirMode uint32

	// AttrTTL and EntryTTL are how long the kernel may answer from memory; 0
	// means one second. NegativeTTL is the same for absent names, at most one
	// second; 0 means one second, a negative value none.
	AttrTTL, EntryTTL, NegativeTTL time.Duration

	// TrustList takes attributes from listings alone: READDIRPLUS costs no HEAD
	// per object, but mode, owner, mtime and symbolic links that are kept in
	// metadata show only after a lookup of the name.
	TrustList bool

	// OpTimeout bounds one operation that waits for the server, or one part of
	// an upload or fetch; 0 means two minutes.
	OpTimeout time.Duration

	// SpoolDir holds the content of files being written, and what killed mounts
	// left of it; "" means spool.DefaultRoot. A read-only mount has none.
	SpoolDir string
	// SpoolSize bounds the room in SpoolDir that this mount takes, bytes; 0
	// means no limit. SpoolReserve is what has to stay free on its file system;
	// 0 means 1 GiB, or 5 % of a small one, a negative value nothing. A write
	// beyond either is ENOSPC.
	SpoolSize, SpoolReserve int64
	// NoReplay keeps and lists what killed mounts left, instead of storing it.
	NoReplay bool
	// UploadParallel is how many parts of all files are uploaded at once; 0
	// means 8.
	UploadParallel int

	// ExtraStats, when set, is called for every reading of the statistics; the
	// fields of the struct it returns stand beside the mount's own. It must be
	// safe for concurrent use.
	ExtraStats func() any

	// Debug logs every FUSE request.
	Debug  bool
	Logger *slog.Logger
}

// Permissions where neither metadata nor options give any.
const (
	defaultFileMode = 0o644
	defaultDirMode  = 0o755
)

// withDefaults checks o and fills what is zero.
func (o Options) withDefaults() (Options, error) {
	if o.Store == nil || o.Cache == nil {
		return o, errors.New("fs: Options need Store and Cache")
	}
	return o.fill()
}

// fill is withDefaults but for Store and Cache.
func (o Options) fill() (Options, error) {
	o.Prefix = strings.TrimSuffix(o.Prefix, "/")
	if o.Prefix != "" {
		if o.Bucket == "" {
			return o, errors.New("a prefix needs a bucket")
		}
		for _, c := range strings.Split(o.Prefix, "/") {
			if nameErrno(c) != 0 {
				return o, fmt.Errorf("the prefix %q has the component %q, which cannot be a name", o.Prefix, c)
			}
		}
		o.Prefix += "/"
	}
	if o.FileMode == 0 {
		o.FileMode = defaultFileMode
	}
	if o.DirMode == 0 {
		o.DirMode = defaultDirMode
	}
	o.FileMode &= 0o7777
	o.DirMode &= 0o7777
	if o.AttrTTL == 0 {
		o.AttrTTL = time.Second
	}
	if o.EntryTTL == 0 {
		o.EntryTTL = time.Second
	}
	switch {
	case o.NegativeTTL < 0:
		o.NegativeTTL = 0
	case o.NegativeTTL == 0 || o.NegativeTTL > time.Second:
		o.NegativeTTL = time.Second
	}
	if o.OpTimeout <= 0 {
		o.OpTimeout = 2 * time.Minute
	}
	if o.UploadParallel <= 0 {
		o.UploadParallel = 8
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
