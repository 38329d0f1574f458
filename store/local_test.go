package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// unreachable opens a store whose requests, if one is made, fail the test.
func unreachable(t *testing.T) *Store {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a request was made: %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(srv.Close)
	s, err := Open(Options{Endpoint: srv.URL, Region: "us-east-1", Credentials: credentials.NewStaticV4("a", "s", ""), RetryFor: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// What no server can store is refused here, once, as what it is.
func TestInvalidNamesAreRefusedAtOnce(t *testing.T) {
	s := unreachable(t)
	ctx := context.Background()
	refused := func(what string, err error) {
		t.Helper()
		var e *Error
		if !errors.Is(err, ErrInvalidName) || errors.Is(err, ErrUnavailable) || !errors.As(err, &e) || e.Status != 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
	const bad = "no such name"
	ops := map[string]func(bucket, key string) error{
		"BucketExists": func(b, _ string) error { return s.BucketExists(ctx, b) },
		"CreateBucket": func(b, _ string) error { return s.CreateBucket(ctx, b) },
		"RemoveBucket": func(b, _ string) error { return s.RemoveBucket(ctx, b) },
		"List":         func(b, _ string) error { _, err := s.List(ctx, ListRequest{Bucket: b}); return err },
		"Uploads":      func(b, _ string) error { _, err := s.Uploads(ctx, b, ""); return err },
		"Head":         func(b, k string) error { _, err := s.Head(ctx, b, k); return err },
		"Read": func(b, k string) error {
			_, err := s.Read(ctx, ReadRequest{Bucket: b, Key: k, ETag: "e", Dst: plain(make([]byte, 1)), ObjectSize: 1})
			return err
		},
		"Put":   func(b, k string) error { _, err := s.Put(ctx, PutRequest{Bucket: b, Key: k}); return err },
		"Begin": func(b, k string) error { _, err := s.Begin(ctx, b, k, nil, ""); return err },
		"Abort": func(b, k string) error { return s.AbortUpload(ctx, b, k, "id") },
		"Copy": func(b, k string) error {
			_, err := s.Copy(ctx, CopyRequest{Bucket: b, Key: k, DstKey: "dst"})
			return err
		},
		"Copy to": func(b, k string) error {
			_, err := s.Copy(ctx, CopyRequest{Bucket: "bucket", Key: "src", DstBucket: b, DstKey: k})
			return err
		},
		"Delete":     func(b, k string) error { return s.Delete(ctx, b, k) },
		"DeleteMany": func(b, k string) error { _, err := s.DeleteMany(ctx, b, []string{k}); return err },
	}
	for name, op := range ops {
		for _, bucket := range []string{bad, "ab", "a/b", strings.Repeat("b", 64), ""} {
			if name == "Copy to" && bucket == "" {
				continue // the source's
			}
			refused(fmt.Sprintf("%s of bucket %q", name, bucket), op(bucket, "key"))
		}
		switch name {
		case "BucketExists", "CreateBucket", "RemoveBucket", "List", "Uploads", "DeleteMany":
			continue
		}
		for _, key := range []string{"", " ", "\xff", strings.Repeat("k", MaxKeyLen+1)} {
			refused(fmt.Sprintf("%s of key %q", name, key), op("bucket", key))
		}
	}
	// Others may have buckets of such names, but none are made any more.
	for _, bucket := range []string{"BAD_name", "UPPER", "under_score"} {
		refused("CreateBucket of "+bucket, s.CreateBucket(ctx, bucket))
	}
}

// The S3 library's own refusals are neither answers nor failures of the network.
func TestLocalRefusalIsFinal(t *testing.T) {
	s := unreachable(t)
	ctx := context.Background()
	_, err := s.Put(ctx, PutRequest{Bucket: "bucket", Key: "key", Meta: map[string]string{"bad name": "v"}})
	wantKind(t, err, ErrInvalidName)
	_, err = s.Begin(ctx, "bucket", "key", map[string]string{"name": "bad\nvalue"}, "")
	wantKind(t, err, ErrInvalidName)
	if n := s.Stats().Retries; n != 0 {
		t.Errorf("%d retries", n)
	}
	// The same kind of error after a request is the network's.
	c := call{op: "Head"}
	err = within(ctx, time.Minute, func(ctx context.Context) error {
		requestSent(ctx)
		return errors.New("broken answer")
	})
	if e, f := s.judge(ctx, c, err); e.Kind != ErrUnavailable || f != fateUncertain {
		t.Errorf("%v, %v", e, f)
	}
}

func TestTLSAndPlainHTTPMixedUp(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	// A TLS server that speaks no HTTP at all answers a plain request by an alert.
	alert, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer alert.Close()
	go func() {
		for {
			c, err := alert.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			c.Write([]byte{0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46})
			c.Close()
		}
	}()
	plainHost := strings.TrimPrefix(plain.URL, "http://")
	for endpoint, want := range map[string]string{
		plainHost:                         "List s3://bucket: service unavailable: the endpoint speaks plain HTTP: use http://" + plainHost,
		"http://" + alert.Addr().String(): "List s3://bucket: service unavailable: the endpoint speaks TLS: use https://" + alert.Addr().String(),
	} {
		s, err := Open(Options{Endpoint: endpoint, Region: "us-east-1", Credentials: credentials.NewStaticV4("a", "s", ""), RetryFor: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.List(t.Context(), ListRequest{Bucket: "bucket"})
		if !errors.Is(err, ErrUnavailable) || err.Error() != want || s.Stats().Retries != 0 {
			t.Errorf("%v after %d retries, want %s", err, s.Stats().Retries, want)
		}
		s.Close()
	}
}
