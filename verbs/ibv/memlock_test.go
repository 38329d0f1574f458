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
