package verbs

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
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
