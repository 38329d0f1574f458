package shm

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// pinned counts the bytes registered by all devices of this process, as the
// kernel counts pinned pages. Nothing is pinned here, but a setup that would fail
// on hardware for its locked-memory limit fails here too.
var pinned struct {
	sync.Mutex
	bytes uint64
}

func pin(n uint64) error {
	pinned.Lock()
	defer pinned.Unlock()
	if !mayLockAny() {
		var lim unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
			return fmt.Errorf("getrlimit: %w", err)
		}
		if n > lim.Cur || pinned.bytes > lim.Cur-n {
			return fmt.Errorf("%w: %d bytes more than %d registered, limit %d", verbs.ErrMemlock, n, pinned.bytes, lim.Cur)
		}
	}
	pinned.bytes += n
	return nil
}

func unpin(n uint64) {
	pinned.Lock()
	pinned.bytes -= n
	pinned.Unlock()
}

// mayLockAny reports whether CAP_IPC_LOCK is in effect.
func mayLockAny() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
