package fs

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// holdsWritable reports whether task pid has a descriptor open for writing on
// the inode ino. It asks /proc alone and never the file system; where it may not
// look, it answers false.
//
// Inode numbers here are 64-bit hashes, so another file system's file of that number
// is not to be feared.
func holdsWritable(pid uint32, ino uint64) bool {
	dir := fmt.Sprintf("/proc/%d/fdinfo", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, n := range names {
		if describes(filepath.Join(dir, n.Name()), ino) {
			return true
		}
	}
	return false
}

// describes reports whether an fdinfo file is that of a descriptor for writing
// on ino.
func describes(fdinfo string, ino uint64) bool {
	f, err := os.Open(fdinfo)
	if err != nil {
		return false
	}
	defer f.Close()
	var sameInode, writable bool
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch name {
		case "flags":
			flags, err := strconv.ParseUint(value, 8, 64)
			writable = err == nil && flags&syscall.O_ACCMODE != syscall.O_RDONLY
		case "ino":
			n, err := strconv.ParseUint(value, 10, 64)
			sameInode = err == nil && n == ino
		}
	}
	return sameInode && writable
}
