package store

import (
	"context"
	"maps"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/internal/testenv"
)

func TestHeadDescribes(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	// "expires" and "content-type" are keys like others, not headers.
	meta := map[string]string{"mtime": "1700000000.5", "mode": "33188", "expires": "never", "content-type": "x", "mixed": "A=b; c"}
	put := mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: plain([]byte("hello")), Meta: meta, ContentType: "text/x-test"})
	got, err := s.Head(context.Background(), b, "k")
	if err != nil {
		t.Fatal(err)
	}
	if got.Size != 5 || got.ETag != put.ETag || got.ETag != "5d41402abc4b2a76b9719d911017c592" || got.ContentType != "text/x-test" ||
		got.ModTime.IsZero() || !maps.Equal(got.Meta, meta) {
		t.Errorf("got %+v", got)
	}
}

func TestHeadOfNothing(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	ctx := context.Background()
	for name, warm := range map[string]bool{"first request": false, "bucket known": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t, env, env.Endpoint, nil)
			if warm {
				if _, err := s.List(ctx, ListRequest{Bucket: b}); err != nil {
					t.Fatal(err)
				}
			}
			_, err := s.Head(ctx, b, "nothing")
			wantKind(t, err, ErrNotFound)
			_, err = s.Head(ctx, "no-such-bucket", "nothing")
			wantKind(t, err, ErrNoBucket)
			_, err = s.Head(ctx, b, "bad\xffutf8")
			wantKind(t, err, ErrInvalidName)
			_, err = s.Head(ctx, b, "")
			wantKind(t, err, ErrInvalidName)
		})
	}
}

// While a bucket is known, an absent key costs one request.
func TestHeadOfNothingIsOneRequest(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	ctx := context.Background()
	if _, err := s.List(ctx, ListRequest{Bucket: b}); err != nil {
		t.Fatal(err)
	}
	before := len(p.Requests(""))
	_, err := s.Head(ctx, b, "nothing")
	wantKind(t, err, ErrNotFound)
	if n := len(p.Requests("")) - before; n != 1 {
		t.Errorf("%d requests", n)
	}
}

// A 404 of something on the way says nothing about the object.
func TestForeign404IsNotAbsence(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	p.Add(faultproxy.Rule{Fault: faultproxy.HTML(404)})
	ctx := context.Background()
	_, err := s.Head(ctx, b, "key")
	wantKind(t, err, ErrBadAnswer)
	_, err = s.List(ctx, ListRequest{Bucket: b})
	wantKind(t, err, ErrBadAnswer)
	buf := make([]byte, 10)
	_, err = s.Read(ctx, ReadRequest{Bucket: b, Key: "key", ETag: "x", Dst: plain(buf), ObjectSize: 20})
	wantKind(t, err, ErrBadAnswer)
}

// rotating hands out new keys at every refresh, the first of which are bad.
type rotating struct {
	credentials.Value
	retrieved int
}

func (r *rotating) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	r.retrieved++
	return r.Value, nil
}
func (r *rotating) Retrieve() (credentials.Value, error) { return r.RetrieveWithCredContext(nil) }
func (r *rotating) IsExpired() bool                      { return r.retrieved == 0 }

func TestExpiredTokenIsRefreshedOnce(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	env.Put(b, "key", []byte("x"))
	for name, c := range map[string]struct {
		times   int
		fetches int
		err     error
	}{
		"fresh token works": {1, 2, nil},
		"stays expired":     {0, 2, ErrBadCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			p := faultproxy.Start(t, env.Endpoint)
			creds := &rotating{Value: credentials.Value{AccessKeyID: env.AccessKey, SecretAccessKey: env.SecretKey, SignerType: credentials.SignatureV4}}
			s := open(t, env, p.URL, func(o *Options) { o.Credentials = credentials.New(creds) })
			p.Add(faultproxy.Rule{Method: "HEAD", Times: c.times, Fault: faultproxy.Status(400, "")})
			p.Add(faultproxy.Rule{Method: "GET", Times: c.times, Fault: faultproxy.Status(400, "ExpiredToken")})
			_, err := s.Head(context.Background(), b, "key")
			if c.err == nil && err != nil {
				t.Fatal(err)
			}
			if c.err != nil {
				wantKind(t, err, c.err)
			}
			if creds.retrieved != c.fetches {
				t.Errorf("credentials fetched %d times, want %d", creds.retrieved, c.fetches)
			}
		})
	}
}
