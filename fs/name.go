package fs

import (
	"strings"
	"syscall"
	"unicode/utf8"

	"s3rdmafs/store"
)

// maxNameLen is the longest name in a directory, in bytes, as statfs tells.
const maxNameLen = 255

// nameErrno tells why name cannot be one component of a key, or 0. S3 keys are
// UTF-8; control characters do not survive the XML of many servers.
func nameErrno(name string) syscall.Errno {
	switch {
	case len(name) > maxNameLen:
		return syscall.ENAMETOOLONG
	case name == "" || name == "." || name == "..":
		return syscall.EINVAL
	case !utf8.ValidString(name):
		return syscall.EILSEQ
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '/' }) {
		return syscall.EINVAL
	}
	return 0
}

// keyErrno is nameErrno for a name below prefix, and the length of the key.
// A directory's key carries one byte more.
func keyErrno(prefix, name string, isDir bool) syscall.Errno {
	if e := nameErrno(name); e != 0 {
		return e
	}
	n := len(prefix) + len(name)
	if isDir {
		n++
	}
	if n > store.MaxKeyLen {
		return syscall.ENAMETOOLONG
	}
	return 0
}

// hashPath is the inode number a path has by itself: FNV-1a of bucket and key.
func hashPath(bucket, path string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(bucket) {
		h = (h ^ uint64(bucket[i])) * prime
	}
	h = (h ^ '/') * prime
	for i := range len(path) {
		h = (h ^ uint64(path[i])) * prime
	}
	return h
}
