package fs

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"s3rdmafs/cache"
	"s3rdmafs/store"
)

// errInterrupted is the cause of a context that a signal to the caller ended.
var errInterrupted = errors.New("interrupted by a signal")

// errnos is the one mapping from errors to what a program sees; the first
// match wins.
var errnos = []struct {
	err   error
	errno syscall.Errno
}{
	{errInterrupted, syscall.EINTR},
	{context.DeadlineExceeded, syscall.EIO},
	{context.Canceled, syscall.EINTR},
	{store.ErrNotFound, syscall.ENOENT},
	{store.ErrNoBucket, syscall.ENOENT},
	{store.ErrDenied, syscall.EACCES},
	{store.ErrBadCredentials, syscall.EACCES},
	{store.ErrExists, syscall.EEXIST},
	{store.ErrPrecondition, syscall.ESTALE},
	{store.ErrChanged, syscall.ESTALE},
	{store.ErrArchived, syscall.EREMOTE},
	{store.ErrLocked, syscall.EPERM},
	{store.ErrTooLarge, syscall.EFBIG},
	{store.ErrNotEmpty, syscall.ENOTEMPTY},
	{store.ErrInvalidName, syscall.EINVAL},
	{store.ErrNoSpace, syscall.ENOSPC},
	{store.ErrNotDirectory, syscall.ENOTDIR},
	{store.ErrIsDirectory, syscall.EISDIR},
	{store.ErrUnsupported, syscall.EOPNOTSUPP},
	{store.ErrThrottled, syscall.EIO},
	{store.ErrTimeout, syscall.EIO},
	{store.ErrUnavailable, syscall.EIO},
	{store.ErrBadAnswer, syscall.EIO},
	{store.ErrRDMA, syscall.EIO},
	{store.ErrBadRange, syscall.EIO},
	{cache.ErrExhausted, syscall.ENOMEM},
}

// refusals are the kinds of errors by which a server says that it has stored
// nothing.
var refusals = []error{
	store.ErrDenied, store.ErrBadCredentials, store.ErrNoBucket, store.ErrInvalidName, store.ErrUnsupported, store.ErrRefused,
	store.ErrTooLarge, store.ErrNoSpace, store.ErrLocked, store.ErrNotDirectory, store.ErrIsDirectory,
	store.ErrPrecondition, store.ErrExists,
}

// refused reports whether err is a server's word that nothing was stored.
func refused(err error) bool {
	return slices.ContainsFunc(refusals, func(kind error) bool { return errors.Is(err, kind) })
}

// errnoOf is the errno for err. An errno inside err, such as ENOSPC of the
// spool, passes unless a kind of package store stands beside it; what nobody
// knows is EIO.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return e.errno
		}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EIO
}

// errnoName is the symbol of an errno, as ENOENT.
func errnoName(e syscall.Errno) string {
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return e.Error()
}
