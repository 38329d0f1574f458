package verbs

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemlockLimit(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	const soft = 64 << 10
	if old.Max < soft {
		t.Skip("the hard limit of locked memory is below 64 KiB")
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: soft, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)
	limit, unlimited := MemlockLimit()
	if limit != soft || unlimited != mayLockAnything() {
		t.Errorf("limit %d, unlimited %t", limit, unlimited)
	}
}
