package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"s3rdmafs/verbs/provider"
)

const cgroupRoot = "/sys/fs/cgroup"

// memory compares the cache with what this process may use.
func (r *run) memory(context.Context) {
	size := uint64(r.cacheSize())
	c := Check{Group: groupMachine, Name: "memory", Status: OK}
	available := meminfo("MemAvailable")
	c.Fact = fmt.Sprintf("%s available, the cache may take %s", humanize.IBytes(available), humanize.IBytes(size))
	self, _ := os.ReadFile("/proc/self/cgroup")
	limit, where, limited := memoryLimit(cgroupRoot, string(self))
	if limited {
		c.Fact += fmt.Sprintf("; memory.max of cgroup %s is %s", where, humanize.IBytes(limit))
	} else {
		c.Fact += "; no cgroup v2 limit"
	}
	switch {
	case limited && limit <= size:
		c.Status, c.Remedy = Fail, "the kernel would kill the mount once its cache is full: raise the limit (MemoryMax=, docker run --memory) or lower --cache-size"
	case limited && limit-size < limit/4:
		c.Status, c.Remedy = Warn, "little is left for file handles, uploads and the Go runtime: raise the limit or lower --cache-size"
	case available != 0 && available < size:
		c.Status, c.Remedy = Warn, "lower --cache-size to what this machine can spare"
	}
	r.add(c)
}

// memlock says whether the cache can be pinned.
func (r *run) memlock() {
	size := uint64(r.cacheSize())
	limit, unlimited := provider.MemlockLimit()
	c := Check{Group: groupRDMA, Name: "memlock", Status: OK}
	switch {
	case unlimited:
		r.pinned = true
		c.Fact = "no limit for this process"
	case limit >= size:
		r.pinned = true
		c.Fact = fmt.Sprintf("may lock %s, the cache wants %s", humanize.IBytes(limit), humanize.IBytes(size))
	default:
		c.Status = r.withoutRDMA()
		if r.o.CacheSize != 0 {
			c.Status = Fail
		}
		c.Fact = fmt.Sprintf("may lock %s, less than the %s of the cache", humanize.IBytes(limit), humanize.IBytes(size))
		c.Remedy = "raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, docker run --ulimit memlock=-1), or lower --cache-size"
	}
	r.add(c)
}

// meminfo reads one value of /proc/meminfo in bytes, 0 when it is not there.
func meminfo(name string) uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// memoryLimit finds the smallest memory.max from the process's cgroup up to
// root, where cgroup v2 is mounted. self is /proc/self/cgroup.
func memoryLimit(root, self string) (limit uint64, where string, ok bool) {
	var path string
	for line := range strings.Lines(self) {
		if rest, found := strings.CutPrefix(line, "0::"); found {
			path = strings.TrimSpace(rest)
		}
	}
	if path == "" {
		return 0, "", false
	}
	for path = filepath.Join("/", path); ; path = filepath.Dir(path) {
		text, err := os.ReadFile(filepath.Join(root, path, "memory.max"))
		if n, perr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && perr == nil && (!ok || n < limit) {
			limit, where, ok = n, path, true
		}
		if path == "/" {
			return limit, where, ok
		}
	}
}
