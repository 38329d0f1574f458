package ibv

import (
	"fmt"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// wrap gives the errno of a verb the project's error, and keeps both.
func wrap(verb string, errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	var kind error
	switch errno {
	case unix.EINVAL:
		kind = verbs.ErrInvalid
	case unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.EAGAIN:
		kind = verbs.ErrNoResource
	case unix.EBUSY:
		kind = verbs.ErrBusy
	case unix.ENODEV, unix.ENXIO, unix.ENOENT:
		kind = verbs.ErrNoDevice
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ETIMEDOUT, unix.EADDRNOTAVAIL:
		kind = verbs.ErrUnreachable
	case unix.ENOSYS, unix.EOPNOTSUPP:
		kind = verbs.ErrUnsupported
	default:
		return fmt.Errorf("%s: %w", verb, errno)
	}
	return fmt.Errorf("%s: %w: %w", verb, kind, errno)
}

// wrapPost is wrap for posting work requests, where ENOMEM is a full queue.
func wrapPost(verb string, errno unix.Errno) error {
	if errno == unix.ENOMEM {
		return fmt.Errorf("%s: %w: %w", verb, verbs.ErrQueueFull, errno)
	}
	return wrap(verb, errno)
}
