package store

import (
	"context"
	"errors"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// Buckets lists the buckets of the account. ErrDenied is usual where only
// single buckets are granted.
func (s *Store) Buckets(ctx context.Context) ([]Bucket, error) {
	var out []Bucket
	err := s.do(ctx, call{op: "Buckets"}, s.o.Timeout, func(ctx context.Context) error {
		list, err := s.core.ListBuckets(ctx)
		if err != nil {
			return err
		}
		out = make([]Bucket, len(list))
		for i, b := range list {
			out[i] = Bucket{Name: b.Name, Created: b.CreationDate.Truncate(time.Second)}
		}
		return nil
	})
	return out, err
}

// BucketExists returns nil when the bucket is there and its keys or head may
// be asked for, else ErrNoBucket, ErrDenied, ErrBadCredentials, …
func (s *Store) BucketExists(ctx context.Context, bucket string) error {
	c := call{op: "BucketExists", bucket: bucket}
	if err := checkNames(c); err != nil {
		return err
	}
	err := s.do(ctx, c, s.o.Timeout, func(ctx context.Context) error {
		ok, err := s.core.BucketExists(ctx, bucket)
		if err == nil && !ok {
			err = &Error{Op: c.op, Bucket: bucket, Kind: ErrNoBucket, Status: 404}
		}
		return err
	})
	var e *Error
	if !errors.As(err, &e) || e.Status == 0 || e.Status >= 500 {
		return err
	}
	// The answer to a HEAD has no body, so bad credentials look like a
	// missing or forbidden bucket. A listing has one.
	_, listErr := s.List(ctx, ListRequest{Bucket: bucket, Max: 1})
	if listErr == nil || errors.As(listErr, &e) && !errors.Is(listErr, ErrDenied) {
		return renamed(listErr, c.op)
	}
	return err
}

// renamed gives an error of a request made on behalf of op its name.
func renamed(err error, op string) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	e2 := *e
	e2.Op = op
	return &e2
}

// CreateBucket creates a bucket in the store's region; ErrExists when there is one.
func (s *Store) CreateBucket(ctx context.Context, bucket string) error {
	c := call{op: "CreateBucket", bucket: bucket}
	// What other servers may have for historical reasons is not to be made anew.
	if err := s3utils.CheckValidBucketNameStrict(bucket); err != nil {
		return invalidName(c, err)
	}
	return s.do(ctx, c, s.o.Timeout, func(ctx context.Context) error {
		return s.core.MakeBucket(ctx, bucket, minio.MakeBucketOptions{Region: s.c.Region})
	})
}

// RemoveBucket removes an empty bucket; ErrNotEmpty when it is not.
func (s *Store) RemoveBucket(ctx context.Context, bucket string) error {
	c := call{op: "RemoveBucket", bucket: bucket}
	if err := checkNames(c); err != nil {
		return err
	}
	defer s.doubt(bucket)
	return s.do(ctx, c, s.o.Timeout, func(ctx context.Context) error {
		return s.core.RemoveBucket(ctx, bucket)
	})
}
