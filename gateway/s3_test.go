package gateway_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/minio/minio-go/v7"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/testenv"
)

func data(n int) []byte {
	b := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	rnd.Read(b)
	return b
}

func md5hex(b []byte) string {
	sum := md5.Sum(b)
	return hex.EncodeToString(sum[:])
}

// wantCode checks that err is the S3 error code.
func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var api smithy.APIError
	got := minio.ToErrorResponse(err).Code
	if errors.As(err, &api) {
		got = api.ErrorCode()
	}
	if err == nil || got != code {
		t.Errorf("error = %v (code %q), want code %q", err, got, code)
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	for _, n := range []int{0, 1, 4095, 64 << 10, 3<<20 + 1} {
		key := fmt.Sprintf("dir/object-%d", n)
		want := data(n)
		e.Put(b, key, want)
		if got := e.Get(b, key); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: read back %d other bytes", n, len(got))
		}
		st, err := e.Minio().StatObject(ctx, b, key, minio.StatObjectOptions{})
		if err != nil || st.Size != int64(n) || st.ETag != md5hex(want) {
			t.Errorf("%d bytes: stat = size %d, ETag %s, %v; want ETag %s", n, st.Size, st.ETag, err, md5hex(want))
		}
	}

	whole := data(3<<20 + 1)
	for _, r := range [][2]int{{0, 1}, {0, 9999}, {1, 1}, {12345, 9999}, {1 << 20, 2 << 20}, {3 << 20, 1}} {
		opt := minio.GetObjectOptions{}
		if err := opt.SetRange(int64(r[0]), int64(r[0]+r[1]-1)); err != nil {
			t.Fatal(err)
		}
		o, _, _, err := minio.Core{Client: e.Minio()}.GetObject(ctx, b, "dir/object-3145729", opt)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(o)
		o.Close()
		if err != nil || !bytes.Equal(got, whole[r[0]:r[0]+r[1]]) {
			t.Errorf("range %v: %d bytes, %v", r, len(got), err)
		}
	}
	opt := minio.GetObjectOptions{}
	if err := opt.SetRange(int64(len(whole)), 0); err != nil {
		t.Fatal(err)
	}
	_, _, _, err := minio.Core{Client: e.Minio()}.GetObject(ctx, b, "dir/object-3145729", opt)
	wantCode(t, err, "InvalidRange")

	if err := e.Minio().RemoveObject(ctx, b, "dir/object-1", minio.RemoveObjectOptions{}); err != nil {
		t.Error(err)
	}
	_, err = e.Minio().StatObject(ctx, b, "dir/object-1", minio.StatObjectOptions{})
	wantCode(t, err, "NoSuchKey")
	_, err = e.Minio().StatObject(ctx, "no-such-bucket", "key", minio.StatObjectOptions{})
	if minio.ToErrorResponse(err).StatusCode != http.StatusNotFound {
		t.Errorf("stat in a missing bucket: %v", err)
	}
}

func TestUserMetadata(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	_, err := e.Minio().PutObject(ctx, b, "key", strings.NewReader("x"), 1, minio.PutObjectOptions{
		ContentType:  "text/x-test",
		UserMetadata: map[string]string{"Mtime": "1700000000.123456789", "mode": "33188"},
	})
	if err != nil {
		t.Fatal(err)
	}
	head, err := e.S3().HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b, Key: aws.String("key")})
	if err != nil {
		t.Fatal(err)
	}
	if head.Metadata["mtime"] != "1700000000.123456789" || head.Metadata["mode"] != "33188" || *head.ContentType != "text/x-test" {
		t.Errorf("metadata = %v, content type %s", head.Metadata, *head.ContentType)
	}

	// A copy onto itself with REPLACE changes the metadata and keeps the data.
	_, err = e.S3().CopyObject(ctx, &s3.CopyObjectInput{
		Bucket: &b, Key: aws.String("key"), CopySource: aws.String(b + "/key"),
		MetadataDirective: types.MetadataDirectiveReplace,
		Metadata:          map[string]string{"mode": "33152"},
	})
	if err != nil {
		t.Fatal(err)
	}
	after, err := e.S3().HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b, Key: aws.String("key")})
	if err != nil {
		t.Fatal(err)
	}
	if after.Metadata["mode"] != "33152" || after.Metadata["mtime"] != "" || *after.ETag != *head.ETag {
		t.Errorf("after the copy: metadata %v, ETag %s; before %s", after.Metadata, *after.ETag, *head.ETag)
	}
}

func TestMultipart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	core := minio.Core{Client: e.Minio()}
	want := data(11<<20 + 3)
	parts := [][]byte{want[:5<<20], want[5<<20 : 10<<20], want[10<<20:]}

	id, err := core.NewMultipartUpload(ctx, b, "a/big", minio.PutObjectOptions{UserMetadata: map[string]string{"mode": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	var done []minio.CompletePart
	sums := md5.New()
	for i, p := range slices.Backward(parts) {
		res, err := core.PutObjectPart(ctx, b, "a/big", id, i+1, bytes.NewReader(p), int64(len(p)), minio.PutObjectPartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if res.ETag != md5hex(p) {
			t.Errorf("part %d: ETag %s, want %s", i+1, res.ETag, md5hex(p))
		}
		done = append(done, minio.CompletePart{PartNumber: i + 1, ETag: res.ETag})
	}
	slices.Reverse(done)
	for _, p := range parts {
		s := md5.Sum(p)
		sums.Write(s[:])
	}
	if _, err := e.Minio().StatObject(ctx, b, "a/big", minio.StatObjectOptions{}); err == nil {
		t.Error("the key appears before the upload is complete")
	}
	res, err := core.CompleteMultipartUpload(ctx, b, "a/big", id, done, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if etag := hex.EncodeToString(sums.Sum(nil)) + "-3"; res.ETag != etag {
		t.Errorf("ETag %s, want %s", res.ETag, etag)
	}
	if got := e.Get(b, "a/big"); !bytes.Equal(got, want) {
		t.Error("other bytes than the parts'")
	}
}

func putIf(ctx context.Context, c *s3.Client, bucket, key string, body []byte, ifMatch, ifNoneMatch string) (string, error) {
	in := &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(body)}
	if ifMatch != "" {
		in.IfMatch = &ifMatch
	}
	if ifNoneMatch != "" {
		in.IfNoneMatch = &ifNoneMatch
	}
	out, err := c.PutObject(ctx, in)
	if err != nil {
		return "", err
	}
	return *out.ETag, nil
}

func TestConditionalPut(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	c := e.S3()

	etag, err := putIf(ctx, c, b, "key", []byte("one"), "", "*")
	if err != nil {
		t.Fatal(err)
	}
	_, err = putIf(ctx, c, b, "key", []byte("two"), "", "*")
	wantCode(t, err, "PreconditionFailed")
	_, err = putIf(ctx, c, b, "key", []byte("two"), `"00000000000000000000000000000000"`, "")
	wantCode(t, err, "PreconditionFailed")
	_, err = putIf(ctx, c, b, "missing", []byte("two"), etag, "")
	wantCode(t, err, "NoSuchKey")
	if _, err = putIf(ctx, c, b, "key", []byte("two"), etag, ""); err != nil {
		t.Fatal(err)
	}
	if got := e.Get(b, "key"); string(got) != "two" {
		t.Errorf("object = %q", got)
	}
}

// Of many writers that want to create a key exactly one may succeed, and of
// many that replace a version exactly one each time.
func TestConditionalPutsInParallel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	const writers, rounds = 8, 5
	etag := ""
	for round := range rounds {
		ifNoneMatch := ""
		if round == 0 {
			ifNoneMatch = "*"
		}
		var won, lost atomic.Int32
		var next atomic.Value
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				got, err := putIf(ctx, e.S3(), b, "key", fmt.Appendf(nil, "round %d, writer %d", round, w), etag, ifNoneMatch)
				switch {
				case err == nil:
					won.Add(1)
					next.Store(got)
				case strings.Contains(err.Error(), "PreconditionFailed"):
					lost.Add(1)
				default:
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || lost.Load() != writers-1 {
			t.Fatalf("round %d: %d writers won, %d lost", round, won.Load(), lost.Load())
		}
		etag = next.Load().(string)
	}
}

func TestListingOfOddKeys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	keys := []string{
		"plain", "with space", "plus+sign", "per%cent", "per%2Fcent", "a&b=c", "ünïcode", "quote\"'", "<xml>",
		"tab\there", "dir/inner", "dir/with space", "q?mark", "hash#tag", "back\\slash", "semi;colon", "~tilde", "new\nline",
	}
	slices.Sort(keys)
	for _, k := range keys {
		e.Put(b, k, []byte(k))
	}
	var got []string
	for o := range e.Minio().ListObjectsIter(ctx, b, minio.ListObjectsOptions{Recursive: true, MaxKeys: 4}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		got = append(got, o.Key)
		if string(e.Get(b, o.Key)) != o.Key {
			t.Errorf("key %q leads to another object", o.Key)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, keys) {
		t.Errorf("listed\n%q\nwant\n%q", got, keys)
	}
}

// One connection has to serve many requests, also after errors.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	e.Put(b, "key", data(100<<10))
	var dialed atomic.Int32
	client := e.S3With(&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialed.Add(1)
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		},
	}})
	reused := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			if i.Reused {
				reused++
			}
		},
	})
	const turns = 10
	for range turns {
		out, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b, Key: aws.String("key"), Range: aws.String("bytes=5-70000")})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, out.Body); err != nil || n != 69996 {
			t.Fatalf("read %d bytes, %v", n, err)
		}
		out.Body.Close()
		if _, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b, Key: aws.String("missing")}); err == nil {
			t.Fatal("head of a missing key succeeded")
		}
		if _, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b, Key: aws.String("other"), Body: strings.NewReader("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if dialed.Load() != 1 || reused != 3*turns-1 {
		t.Errorf("%d connections, %d of %d requests reused one", dialed.Load(), reused, 3*turns)
	}
}

// A reader sees one version while the object is being overwritten: the ETag is
// that of the bytes, and size and metadata belong to it.
func TestReadersSeeOneVersion(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	versions := map[string]int{} // ETag → size
	var bodies [][]byte
	for i := range 4 {
		v := data(20000 + 5000*i)
		versions[md5hex(v)] = len(v)
		bodies = append(bodies, v)
	}
	put := func(i int) error {
		v := bodies[i%len(bodies)]
		_, err := e.S3().PutObject(context.Background(), &s3.PutObjectInput{
			Bucket: &b, Key: aws.String("key"), Body: bytes.NewReader(v),
			Metadata: map[string]string{"size": fmt.Sprint(len(v))},
		})
		return err
	}
	if err := put(0); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 2 {
		wg.Go(func() {
			for i := w; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := put(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			c := e.S3()
			for range 150 {
				out, err := c.GetObject(context.Background(), &s3.GetObjectInput{Bucket: &b, Key: aws.String("key")})
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(out.Body)
				out.Body.Close()
				if err != nil || `"`+md5hex(got)+`"` != *out.ETag || out.Metadata["size"] != fmt.Sprint(len(got)) {
					t.Errorf("GET: %d bytes with ETag %s, metadata %v, %v", len(got), *out.ETag, out.Metadata, err)
				}
				head, err := c.HeadObject(context.Background(), &s3.HeadObjectInput{Bucket: &b, Key: aws.String("key")})
				if err != nil {
					t.Error(err)
					return
				}
				if size := versions[strings.Trim(*head.ETag, `"`)]; int64(size) != *head.ContentLength || head.Metadata["size"] != fmt.Sprint(size) {
					t.Errorf("HEAD: ETag of %d bytes, length %d, metadata %v", size, *head.ContentLength, head.Metadata)
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	wg.Wait()
}

// Files that were put below the gateway by hand are objects with an ETag that
// changes with them.
func TestFilesPutByHand(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	file := filepath.Join(e.Dir, b, "file")
	if err := os.WriteFile(file, []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	st, err := e.Minio().StatObject(ctx, b, "file", minio.StatObjectOptions{})
	if err != nil || st.ETag == "" || st.Size != 5 {
		t.Fatalf("stat = %d bytes, ETag %q, %v", st.Size, st.ETag, err)
	}
	for o := range e.Minio().ListObjectsIter(ctx, b, minio.ListObjectsOptions{}) {
		if o.ETag != st.ETag {
			t.Errorf("listed ETag %q, HEAD says %q", o.ETag, st.ETag)
		}
	}
	if err := os.WriteFile(file, []byte("second"), 0o644); err != nil {
		t.Fatal(err)
	}
	st2, err := e.Minio().StatObject(ctx, b, "file", minio.StatObjectOptions{})
	if err != nil || st2.ETag == st.ETag {
		t.Errorf("ETag %q stays after a change, %v", st2.ETag, err)
	}
	if _, err := putIf(ctx, e.S3(), b, "file", []byte("third"), `"`+st.ETag+`"`, ""); err == nil {
		t.Error("a PUT on the condition of the old ETag succeeded")
	}
	if _, err := putIf(ctx, e.S3(), b, "file", []byte("third"), `"`+st2.ETag+`"`, ""); err != nil {
		t.Error(err)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := testenv.Start(t, testenv.Options{})
	b := e.NewBucket("")
	e.Put(b, "key", []byte("x"))
	get := func(access, secret string) error {
		_, _, _, err := minio.Core{Client: e.MinioAs(access, secret)}.GetObject(ctx, b, "key", minio.GetObjectOptions{})
		return err
	}
	wantCode(t, get("NOBODY", "secret"), "InvalidAccessKeyId")
	wantCode(t, get(e.AccessKey, "wrong"), "SignatureDoesNotMatch")
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bucket", "key"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := testenv.Start(t, testenv.Options{Gateway: gateway.Options{Dir: dir, ReadOnly: true}})
	if got := e.Get("bucket", "key"); string(got) != "x" {
		t.Errorf("object = %q", got)
	}
	_, err := putIf(t.Context(), e.S3(), "bucket", "key", []byte("y"), "", "")
	wantCode(t, err, "AccessDenied")
}

func TestBucketsOption(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "old-one"), 0o755); err != nil {
		t.Fatal(err)
	}
	e := testenv.Start(t, testenv.Options{Gateway: gateway.Options{Dir: dir, Buckets: []string{"old-one", "new-one"}}})
	for _, b := range []string{"old-one", "new-one"} {
		e.Put(b, "key", []byte(b))
		if got := e.Get(b, "key"); string(got) != b {
			t.Errorf("object in %s = %q", b, got)
		}
	}
	e.Restart()
	e.Put("new-one", "key", []byte("again"))
}

// The gateway as a front of another S3 service.
func TestUpstream(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	behind := testenv.Start(t, testenv.Options{})
	front := testenv.Start(t, testenv.Options{Gateway: gateway.Options{
		Backend:   gateway.BackendS3,
		AccessKey: "FRONT", SecretKey: "front-secret",
		Upstream: gateway.Upstream{Endpoint: behind.Endpoint, AccessKey: behind.AccessKey, SecretKey: behind.SecretKey},
		Buckets:  []string{"shared"},
	}})
	want := data(6<<20 + 5)
	front.Put("shared", "a/key", want)
	if got := behind.Get("shared", "a/key"); !bytes.Equal(got, want) {
		t.Error("the service behind has other bytes")
	}
	if got := front.Get("shared", "a/key"); !bytes.Equal(got, want) {
		t.Error("other bytes through the front")
	}
	etag, err := putIf(ctx, front.S3(), "shared", "cond", []byte("1"), "", "*")
	if err != nil {
		t.Fatal(err)
	}
	_, err = putIf(ctx, front.S3(), "shared", "cond", []byte("2"), "", "*")
	wantCode(t, err, "PreconditionFailed")
	if _, err = putIf(ctx, front.S3(), "shared", "cond", []byte("2"), etag, ""); err != nil {
		t.Error(err)
	}
	_, err = front.Minio().StatObject(ctx, "shared", "missing", minio.StatObjectOptions{})
	wantCode(t, err, "NoSuchKey")
	var keys []string
	for o := range front.Minio().ListObjectsIter(ctx, "shared", minio.ListObjectsOptions{Recursive: true}) {
		keys = append(keys, o.Key)
	}
	if !slices.Equal(keys, []string{"a/key", "cond"}) {
		t.Errorf("listed %q", keys)
	}
}
