package fs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

const (
	mountInfo        = "/proc/self/mountinfo"
	fuseTypeOfMounts = "fuse.s3rdmafs"
)

// ErrNotMounted: nothing to unmount.
var ErrNotMounted = errors.New("no s3rdmafs is mounted")

// mountEntry is a line of the table of mounts.
type mountEntry struct {
	device uint32 // minor number; of a FUSE mount, that of its connection
	dir    string
	fsType string
}

// ours reports whether it is one of our file systems.
func (e mountEntry) ours() bool { return e.fsType == fuseTypeOfMounts }

// FindMount returns dir as the table of mounts has it; ErrNotMounted when none
// of our file systems, dead or alive, is mounted there.
func FindMount(dir string) (string, error) {
	real, err := resolveMountpoint(dir)
	if err != nil {
		return "", err
	}
	mounts, err := mountsAt(real)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(mounts, mountEntry.ours) {
		return "", fmt.Errorf("%w at %s", ErrNotMounted, dir)
	}
	return real, nil
}

// mountsAt are the mounts at dir, the uppermost last. dir is as resolveMountpoint
// has it.
func mountsAt(dir string) ([]mountEntry, error) {
	b, err := os.ReadFile(mountInfo)
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	var at []mountEntry
	for line := range strings.Lines(string(b)) {
		if e, ok := parseMount(line); ok && e.dir == dir {
			at = append(at, e)
		}
	}
	return at, nil
}

// parseMount reads a line of mountinfo, see proc_pid_mountinfo(5).
func parseMount(line string) (e mountEntry, ok bool) {
	mount, source, ok := strings.Cut(line, " - ")
	f, s := strings.Fields(mount), strings.Fields(source)
	if !ok || len(f) < 6 || len(s) < 1 {
		return e, false
	}
	_, minor, _ := strings.Cut(f[2], ":")
	n, err := strconv.ParseUint(minor, 10, 32)
	return mountEntry{device: uint32(n), dir: unescapeOctal(f[4]), fsType: s[0]}, err == nil
}

// unescapeOctal undoes the escapes of mountinfo: \040 for a space.
func unescapeOctal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
