package shm

import (
	"fmt"
	"sync"

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
	limit, unlimited := verbs.MemlockLimit()
	if !unlimited && (n > limit || pinned.bytes > limit-n) {
		return fmt.Errorf("%w: %d bytes more than %d registered, limit %d", verbs.ErrMemlock, n, pinned.bytes, limit)
	}
	pinned.bytes += n
	return nil
}

func unpin(n uint64) {
	pinned.Lock()
	pinned.bytes -= n
	pinned.Unlock()
}
