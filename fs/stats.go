package fs

import (
	"encoding/json"
	"os"
	"sync/atomic"
	"syscall"
)

// StatsXattr is the extended attribute of the root that holds Stats as JSON.
// listxattr does not show it.
const StatsXattr = "user.s3rdmafs.stats"

// maxStats is the largest extended attribute the kernel passes, bytes.
const maxStats = 64 << 10

// Stats are what a mount counted since it was made, and what it holds now.
type Stats struct {
	PID        int               `json:"pid"` // of the process that serves
	Mountpoint string            `json:"mountpoint"`
	Source     string            `json:"source"`
	Uptime     float64           `json:"uptime_seconds"`
	Ops        map[string]uint64 `json:"ops"`    // requests of the kernel by kind
	Errors     map[string]uint64 `json:"errors"` // answers by errno other than ENOENT of a lookup

	ReadBytes    uint64 `json:"read_bytes"`  // given to the kernel
	WriteBytes   uint64 `json:"write_bytes"` // taken from the kernel
	Uploads      uint64 `json:"uploads"`
	UploadErrors uint64 `json:"upload_errors"`

	Nodes       int    `json:"nodes"`        // in memory
	OpenHandles int64  `json:"open_handles"` // files and directories
	DirtyFiles  int    `json:"dirty_files"`
	DirtyBytes  int64  `json:"dirty_bytes"`  // size of the files not yet stored
	SkippedKeys uint64 `json:"skipped_keys"` // cannot be names
	SpoolBytes  int64  `json:"spool_bytes"`  // on the local disk, of files being written

	Recovery Recovery `json:"recovery"`

	Extra any `json:"-"` // Options.ExtraStats
}

// op is a kind of request.
type op int

const (
	opLookup op = iota
	opGetattr
	opSetattr
	opOpen
	opRead
	opWrite
	opFlush
	opFsync
	opRelease
	opReaddir
	opCreate
	opMkdir
	opMknod
	opUnlink
	opRmdir
	opRename
	opSymlink
	opReadlink
	opXattr
	opFallocate
	opCount
)

var opNames = [opCount]string{
	"lookup", "getattr", "setattr", "open", "read", "write", "flush", "fsync", "release", "readdir",
	"create", "mkdir", "mknod", "unlink", "rmdir", "rename", "symlink", "readlink", "xattr", "fallocate",
}

// counters are the counted part of Stats.
type counters struct {
	ops      [opCount]atomic.Uint64
	errors   [maxErrno]atomic.Uint64
	read     atomic.Uint64
	written  atomic.Uint64
	uploads  atomic.Uint64
	upErrors atomic.Uint64
	handles  atomic.Int64
	skipped  atomic.Uint64
}

const maxErrno = 134

// count notes one request and its answer.
func (c *counters) count(o op, errno syscall.Errno) {
	c.ops[o].Add(1)
	switch {
	case errno == 0, o == opLookup && errno == syscall.ENOENT:
	case int(errno) < maxErrno:
		c.errors[errno].Add(1)
	}
}

func (s *filesystem) stats() Stats {
	st := Stats{
		PID:          os.Getpid(),
		Ops:          map[string]uint64{},
		Errors:       map[string]uint64{},
		ReadBytes:    s.n.read.Load(),
		WriteBytes:   s.n.written.Load(),
		Uploads:      s.n.uploads.Load(),
		UploadErrors: s.n.upErrors.Load(),
		OpenHandles:  s.n.handles.Load(),
		SkippedKeys:  s.n.skipped.Load(),
		Recovery:     s.recovery.read(),
	}
	if s.spool != nil {
		st.SpoolBytes = s.spool.Used()
	}
	for o := range s.n.ops {
		if n := s.n.ops[o].Load(); n > 0 {
			st.Ops[opNames[o]] = n
		}
	}
	for e := range s.n.errors {
		if n := s.n.errors[e].Load(); n > 0 {
			st.Errors[errnoName(syscall.Errno(e))] = n
		}
	}
	s.mu.Lock()
	st.Nodes = len(s.inos)
	st.DirtyFiles = len(s.dirty)
	for f := range s.dirty {
		f.mu.Lock()
		st.DirtyBytes += f.sizeLocked()
		f.mu.Unlock()
	}
	s.mu.Unlock()
	if s.o.ExtraStats != nil {
		st.Extra = s.o.ExtraStats()
	}
	return st
}

// statsJSON is the value of StatsXattr. The caller's section, an object, stands
// beside the own fields; it is left out when it does not fit.
func (m *Mounted) statsJSON() ([]byte, error) {
	st := m.Stats()
	own, err := json.Marshal(st)
	if err != nil || st.Extra == nil {
		return own, err
	}
	extra, err := json.Marshal(st.Extra)
	if err != nil {
		return nil, err
	}
	if len(extra) <= len("{}") || extra[0] != '{' || len(own)+len(extra) > maxStats {
		return own, nil
	}
	return append(append(own[:len(own)-1], ','), extra[1:]...), nil
}
