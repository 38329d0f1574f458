package store

import (
	"context"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/internal/testenv"
)

func TestBucketLife(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	wantKind(t, s.BucketExists(ctx, "bucket-life"), ErrNoBucket)
	if err := s.CreateBucket(ctx, "bucket-life"); err != nil {
		t.Fatal(err)
	}
	if err := s.BucketExists(ctx, "bucket-life"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, s.CreateBucket(ctx, "bucket-life"), ErrExists)
	mustPut(t, s, PutRequest{Bucket: "bucket-life", Key: "k"})
	list, err := s.Buckets(ctx)
	if err != nil || len(list) != 1 || list[0].Name != "bucket-life" || list[0].Created.IsZero() {
		t.Fatalf("buckets %+v, %v", list, err)
	}
	wantKind(t, s.RemoveBucket(ctx, "bucket-life"), ErrNotEmpty)
	if err := s.Delete(ctx, "bucket-life", "k"); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveBucket(ctx, "bucket-life"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, s.RemoveBucket(ctx, "bucket-life"), ErrNoBucket)
	wantKind(t, s.BucketExists(ctx, "x"), ErrInvalidName)
}

// Answers to HEAD have no body, so these look like missing and forbidden things.
func TestBadCredentialsAreNotAbsence(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	ctx := context.Background()
	for name, creds := range map[string]*credentials.Credentials{
		"secret":     credentials.NewStaticV4(env.AccessKey, "wrong-secret", ""),
		"access key": credentials.NewStaticV4("NOBODY", env.SecretKey, ""),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, env, env.Endpoint, func(o *Options) { o.Credentials = creds })
			wantKind(t, s.BucketExists(ctx, b), ErrBadCredentials)
			_, err := s.Head(ctx, b, "key")
			wantKind(t, err, ErrBadCredentials)
			_, err = s.List(ctx, ListRequest{Bucket: b})
			wantKind(t, err, ErrBadCredentials)
			_, err = s.Put(ctx, PutRequest{Bucket: b, Key: "key"})
			wantKind(t, err, ErrBadCredentials)
			_, err = s.Buckets(ctx)
			wantKind(t, err, ErrBadCredentials)
		})
	}
}
