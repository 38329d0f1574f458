package ibv

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// MemlockLimit returns the bytes that this process may register. unlimited
// is true when the kernel does not check, because RLIMIT_MEMLOCK is infinite or
// because of CAP_IPC_LOCK.
func MemlockLimit() (limit uint64, unlimited bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, false
	}
	return r.Cur, r.Cur == unix.RLIM_INFINITY || mayLockAnything()
}

// mayLockAnything reports CAP_IPC_LOCK. The kernel asks for it in the first
// user namespace, so root of a container that has its own does not count.
func mayLockAnything() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	if data[0].Effective&(1<<unix.CAP_IPC_LOCK) == 0 {
		return false
	}
	m, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || strings.Join(strings.Fields(string(m)), " ") == "0 0 4294967295"
}

// pinned returns the bytes this process has pinned, as the kernel counts
// them against the limit.
func pinned() uint64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for s := bufio.NewScanner(bytes.NewReader(status)); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), "VmPin:")
		if !ok {
			continue
		}
		kib, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		return kib << 10
	}
	return 0
}

// registerError explains a failed registration of length bytes: the kernel
// says ENOMEM (EPERM with a limit of zero) for the limit as for lack of memory.
func registerError(errno unix.Errno, length int) error {
	limit, unlimited := MemlockLimit()
	return registerErrorAt(errno, length, pinned(), limit, unlimited)
}

func registerErrorAt(errno unix.Errno, length int, pinned, limit uint64, unlimited bool) error {
	short := errno == unix.ENOMEM && pinned+uint64(length) > limit
	if !unlimited && (short || errno == unix.EPERM) {
		return fmt.Errorf("%w: %d bytes more than the %d pinned, limit %d (ulimit -l)", verbs.ErrMemlock, length, pinned, limit)
	}
	return wrap("ibv_reg_mr", errno)
}
