package fs

import (
	"context"
	"errors"

	"s3rdmafs/store"
)

// conditionally calls write with a condition on the object key. Where the
// server has no conditional writes, it looks whether the condition holds and
// calls write without.
func (s *filesystem) conditionally(ctx context.Context, bucket, key string, cond store.Cond, write func(store.Cond) (store.Info, error)) (store.Info, error) {
	info, err := write(cond)
	if err == nil || cond.IsZero() || !errors.Is(err, store.ErrUnsupported) {
		return info, err
	}
	if !s.noCond.Swap(true) {
		s.log.Warn("server has no conditional writes; another writer in the same instant goes unnoticed", "err", err)
	}
	now, err := s.store.Head(ctx, bucket, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if cond.IfMatch != "" {
			return store.Info{}, store.ErrPrecondition
		}
	case err != nil:
		return store.Info{}, err
	case cond.IfAbsent:
		return store.Info{}, store.ErrExists
	case now.ETag != cond.IfMatch:
		return store.Info{}, store.ErrPrecondition
	}
	return write(store.Cond{})
}
