package store

import (
	"context"
	"errors"
	"time"

	"s3rdmafs/verbs"
)

// Store is one S3 endpoint with one set of credentials.
type Store struct{ o Options }

// Options configure Open.
type Options struct{ Endpoint string }

var errStub = errors.New("not built yet")

func Open(o Options) (*Store, error)                           { return &Store{o: o}, nil }
func (s *Store) Buckets(ctx context.Context) ([]Bucket, error) { return nil, errStub }

// BucketExists returns nil when the bucket is there and may be used, else ErrNoBucket, ErrDenied, …
func (s *Store) BucketExists(ctx context.Context, bucket string) error      { return errStub }
func (s *Store) CreateBucket(ctx context.Context, bucket string) error      { return errStub }
func (s *Store) RemoveBucket(ctx context.Context, bucket string) error      { return errStub }
func (s *Store) List(ctx context.Context, r ListRequest) (Page, error)      { return Page{}, errStub }
func (s *Store) Head(ctx context.Context, bucket, key string) (Info, error) { return Info{}, errStub }
func (s *Store) Read(ctx context.Context, r ReadRequest) (int, error)       { return 0, errStub }
func (s *Store) Put(ctx context.Context, r PutRequest) (Info, error)        { return Info{}, errStub }
func (s *Store) Copy(ctx context.Context, r CopyRequest) (Info, error)      { return Info{}, errStub }

// Delete removes a key; one that is not there is no error.
func (s *Store) Delete(ctx context.Context, bucket, key string) error { return errStub }

// DeleteMany removes keys and returns those that stayed with their errors.
func (s *Store) DeleteMany(ctx context.Context, bucket string, keys []string) (map[string]error, error) {
	return nil, errStub
}

// Begin starts a multipart upload.
func (s *Store) Begin(ctx context.Context, bucket, key string, meta map[string]string, contentType string) (*Upload, error) {
	return nil, errStub
}

// Uploads lists the unfinished multipart uploads under prefix.
func (s *Store) Uploads(ctx context.Context, bucket, prefix string) ([]UploadInfo, error) {
	return nil, errStub
}

// AbortUpload ends an unfinished multipart upload; one that is not there is no error.
func (s *Store) AbortUpload(ctx context.Context, bucket, key, id string) error { return errStub }

// RDMAPutLimit is the largest object or part that one RDMA transfer can store,
// in bytes; 0 when RDMA is not in use. Parts should not be larger while their
// number allows.
func (s *Store) RDMAPutLimit() int64 { return 0 }

// Stats returns the counters so far.
func (s *Store) Stats() Stats { return Stats{} }

func (s *Store) Close() {}

// UploadInfo is an unfinished multipart upload.
type UploadInfo struct {
	Key, ID string
	Started time.Time
}

// Upload is one multipart upload.
type Upload struct{}

// ID is the upload id.
func (u *Upload) ID() string { return "" }

// Part uploads part n (1…MaxParts) from src; a second call with the same n replaces the part.
func (u *Upload) Part(ctx context.Context, n int, src verbs.Segment) error { return errStub }

// PartCopy makes part n of size bytes at off of the version etag of srcKey in the same bucket.
func (u *Upload) PartCopy(ctx context.Context, n int, srcKey, etag string, off, size int64) error {
	return errStub
}
func (u *Upload) Complete(ctx context.Context, c Cond) (Info, error) { return Info{}, errStub }
func (u *Upload) Abort(ctx context.Context) error                    { return errStub }

// Stats are counters since Open.
type Stats struct{}
