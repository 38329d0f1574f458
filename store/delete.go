package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/minio/minio-go/v7"
)

// Delete removes a key; one that is not there is no error.
func (s *Store) Delete(ctx context.Context, bucket, key string) error {
	c := call{"Delete", bucket, key}
	if err := checkKey(c); err != nil {
		return err
	}
	r := s.retrier(c)
	for {
		err := within(ctx, s.o.Timeout, func(ctx context.Context) error {
			return s.core.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{})
		})
		if err == nil {
			s.answered(bucket)
			return nil
		}
		e, f := s.judge(ctx, c, err)
		if errors.Is(e, ErrNotFound) {
			return nil
		}
		if err := r.again(ctx, e, f); err != nil {
			return err
		}
		// What somebody else created in the meantime must not be deleted
		// by a repetition that was not needed.
		if f == fateUncertain {
			if _, err := s.Head(ctx, bucket, key); errors.Is(err, ErrNotFound) {
				return nil
			}
		}
	}
}

// DeleteMany removes keys and returns those that stayed with their errors.
// The error is that of the request as a whole.
func (s *Store) DeleteMany(ctx context.Context, bucket string, keys []string) (map[string]error, error) {
	c := call{op: "DeleteMany", bucket: bucket}
	if err := checkNames(c); err != nil {
		return nil, err
	}
	failed := make(map[string]error)
	var todo []string
	for _, k := range keys {
		if err := checkKey(call{c.op, bucket, k}); err != nil {
			failed[k] = err
			continue
		}
		todo = append(todo, k)
	}
	r := s.retrier(c)
	for len(todo) > 0 {
		var retry []string
		var last *Error
		var lastFate fate
		for k, err := range s.deleteBatch(ctx, bucket, todo) {
			e, f := s.judge(ctx, call{c.op, bucket, k}, err)
			switch {
			case errors.Is(e, ErrNotFound):
			case f == fateFinal && !tokenExpired(e) && ctx.Err() == nil:
				failed[k] = e
			default:
				retry, last, lastFate = append(retry, k), e, f
			}
		}
		todo = retry
		if len(todo) == 0 {
			break
		}
		if err := r.again(ctx, last, lastFate); err != nil {
			for _, k := range todo {
				failed[k] = err
			}
			return failed, err
		}
	}
	s.answered(bucket)
	return failed, nil
}

var errUnconfirmed = fmt.Errorf("%w: deletion not confirmed", ErrBadAnswer)

// deleteBatch makes one pass and returns the keys that were not confirmed to be gone.
func (s *Store) deleteBatch(ctx context.Context, bucket string, keys []string) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, s.o.CommitTimeout)
	defer cancel()
	ctx, sent := noteSent(ctx)
	in := make(chan minio.ObjectInfo, len(keys))
	left := make(map[string]error, len(keys))
	for _, k := range keys {
		in <- minio.ObjectInfo{Key: k}
		left[k] = errUnconfirmed
	}
	close(in)
	for res := range s.core.RemoveObjectsWithResult(ctx, bucket, in, minio.RemoveObjectsOptions{}) {
		if res.Err == nil {
			delete(left, res.ObjectName)
		} else if _, ok := left[res.ObjectName]; ok {
			left[res.ObjectName] = sent.explain(res.Err)
		}
	}
	return left
}
