package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"s3rdmafs/store"
)

// Semantics "Errors and time": only a real 404 is ENOENT, and so on.
func TestErrno(t *testing.T) {
	wrap := func(kind, cause error) error {
		return fmt.Errorf("outer: %w", &store.Error{Op: "Head", Kind: kind, Err: cause})
	}
	for _, tt := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{wrap(store.ErrNotFound, nil), syscall.ENOENT},
		{wrap(store.ErrNoBucket, nil), syscall.ENOENT},
		{wrap(store.ErrDenied, nil), syscall.EACCES},
		{wrap(store.ErrBadCredentials, nil), syscall.EACCES},
		{wrap(store.ErrPrecondition, nil), syscall.ESTALE},
		{wrap(store.ErrChanged, nil), syscall.ESTALE},
		{wrap(store.ErrExists, nil), syscall.EEXIST},
		{wrap(store.ErrArchived, nil), syscall.EREMOTE},
		{wrap(store.ErrLocked, nil), syscall.EPERM},
		{wrap(store.ErrTooLarge, nil), syscall.EFBIG},
		{wrap(store.ErrNotEmpty, nil), syscall.ENOTEMPTY},
		{wrap(store.ErrInvalidName, nil), syscall.EINVAL},
		{wrap(store.ErrNoSpace, nil), syscall.ENOSPC},
		{wrap(store.ErrNotDirectory, nil), syscall.ENOTDIR},
		{wrap(store.ErrIsDirectory, nil), syscall.EISDIR},
		{wrap(store.ErrUnsupported, nil), syscall.EOPNOTSUPP},
		{wrap(store.ErrThrottled, nil), syscall.EIO},
		{wrap(store.ErrTimeout, context.DeadlineExceeded), syscall.EIO},
		{wrap(store.ErrUnavailable, syscall.ECONNREFUSED), syscall.EIO},
		{&os.PathError{Op: "write", Err: syscall.ENOSPC}, syscall.ENOSPC},
		{errInterrupted, syscall.EINTR},
		{context.Canceled, syscall.EINTR},
		{context.DeadlineExceeded, syscall.EIO},
		{&lostError{kind: syscall.ESTALE, cause: store.ErrExists}, syscall.ESTALE},
		{&lostError{kind: syscall.EEXIST, cause: store.ErrExists}, syscall.EEXIST},
		{errors.New("what nobody knows"), syscall.EIO},
	} {
		if got := errnoOf(tt.err); got != tt.want {
			t.Errorf("errnoOf(%v) = %s, want %s", tt.err, errnoName(got), errnoName(tt.want))
		}
	}
}
