package ibv

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

func TestRegisterError(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name      string
		errno     unix.Errno
		length    int
		pinned    uint64
		limit     uint64
		unlimited bool
		want      error
	}{
		{"beyond the limit", unix.ENOMEM, 2 * mib, 7 * mib, 8 * mib, false, verbs.ErrMemlock},
		{"within the limit", unix.ENOMEM, mib, 7 * mib, 8 * mib, false, verbs.ErrNoResource},
		{"no limit", unix.ENOMEM, 2 * mib, 7 * mib, 8 * mib, true, verbs.ErrNoResource},
		{"limit of zero", unix.EPERM, mib, 0, 0, false, verbs.ErrMemlock},
		{"wrong argument", unix.EINVAL, 2 * mib, 7 * mib, 8 * mib, false, verbs.ErrInvalid},
	} {
		if err := registerErrorAt(c.errno, c.length, c.pinned, c.limit, c.unlimited); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

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
