package gateway_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	"github.com/versity/versitygw/auth"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

func rootClient(r *testenv.RDMA, e *testenv.Env) *rc.Client {
	return r.Client(e, e.AccessKey, e.SecretKey, nil)
}

// Objects that went in by RDMA come out by HTTP and the other way round, with
// the backend on a directory and with one on another S3 service.
func TestTransfers(t *testing.T) {
	t.Parallel()
	posix := testenv.Start(t, testenv.Options{RDMA: true})
	behind := testenv.Start(t, testenv.Options{})
	front := testenv.Start(t, testenv.Options{RDMA: true, Gateway: gateway.Options{
		Backend:  gateway.BackendS3,
		Upstream: gateway.Upstream{Endpoint: behind.Endpoint, AccessKey: behind.AccessKey, SecretKey: behind.SecretKey},
	}})
	for name, e := range map[string]*testenv.Env{"posix": posix, "s3": front} {
		for _, noKeep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/no keep %v", name, noKeep), func(t *testing.T) {
				r := testenv.NewRDMA(t)
				c := r.Client(e, e.AccessKey, e.SecretKey, func(o *rc.ClientOptions) { o.NoKeep, o.Checksum = noKeep, true })
				b := e.NewBucket("")
				for _, n := range []int{64 << 10, 1<<20 + 1, 5 << 20} {
					want := data(n)
					key := fmt.Sprintf("a dir/%d %%+", n)
					put, err := c.Put(t.Context(), rc.PutRequest{Bucket: b, Key: key, Src: r.Segment(n, want)})
					if err != nil {
						t.Fatal(err)
					}
					if put.ETag != md5hex(want) {
						t.Errorf("%d bytes: PUT says ETag %s, want %s", n, put.ETag, md5hex(want))
					}
					if !bytes.Equal(e.Get(b, key), want) {
						t.Errorf("%d bytes: HTTP reads other bytes", n)
					}
					checkGet(t, r, c, b, key, want, 0, n, put.ETag)

					e.Put(b, "by http", want)
					checkGet(t, r, c, b, "by http", want, 0, n, put.ETag)
				}
				whole := data(5 << 20)
				checkGet(t, r, c, b, "by http", whole, 12345, 200_000, md5hex(whole))
				// What runs past the end comes shortened.
				checkGet(t, r, c, b, "by http", whole, len(whole)-100_000, 300_000, md5hex(whole))
			})
		}
	}
}

func checkGet(t *testing.T, r *testenv.RDMA, c *rc.Client, bucket, key string, whole []byte, off, n int, etag string) {
	t.Helper()
	dst := r.Segment(n, nil)
	got, err := c.Get(t.Context(), rc.GetRequest{Bucket: bucket, Key: key, Offset: int64(off), Dst: dst})
	if err != nil {
		t.Fatalf("GET %d bytes at %d: %v", n, off, err)
	}
	want := whole[off:min(off+n, len(whole))]
	if got.N != int64(len(want)) || got.ETag != etag || !bytes.Equal(dst.Buf[:got.N], want) {
		t.Errorf("GET %d bytes at %d: %d bytes with ETag %s, want %d with %s", n, off, got.N, got.ETag, len(want), etag)
	}
}

func TestPutCarriesMetadata(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true})
	r := testenv.NewRDMA(t)
	c := rootClient(r, e)
	b := e.NewBucket("")
	src := r.Segment(100_000, data(100_000))
	_, err := c.Put(t.Context(), rc.PutRequest{
		Bucket: b, Key: "key", Src: src, ContentType: "text/x-test",
		Meta: map[string]string{"mtime": "1700000000.5", "mode": "33188"},
	})
	if err != nil {
		t.Fatal(err)
	}
	head, err := e.S3().HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &b, Key: aws.String("key")})
	if err != nil {
		t.Fatal(err)
	}
	if head.Metadata["mtime"] != "1700000000.5" || head.Metadata["mode"] != "33188" || *head.ContentType != "text/x-test" {
		t.Errorf("metadata %v, content type %s", head.Metadata, *head.ContentType)
	}
}

// Parts by RDMA and by HTTP mix, whatever checksum the upload was begun with.
func TestParts(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true})
	r := testenv.NewRDMA(t)
	c := rootClient(r, e)
	b := e.NewBucket("")
	// The client learns from a first answer that the endpoint takes parts.
	if _, err := c.Put(t.Context(), rc.PutRequest{Bucket: b, Key: "first", Src: r.Segment(64<<10, nil)}); err != nil {
		t.Fatal(err)
	}
	want := data(11 << 20)
	parts := [][]byte{want[:5<<20], want[5<<20 : 10<<20], want[10<<20:]}
	for _, checksum := range []minio.ChecksumType{minio.ChecksumNone, minio.ChecksumFullObjectCRC32C} {
		t.Run(checksum.String(), func(t *testing.T) {
			core := minio.Core{Client: e.Minio()}
			id, err := core.NewMultipartUpload(t.Context(), b, "key", minio.PutObjectOptions{Checksum: checksum})
			if err != nil {
				t.Fatal(err)
			}
			var done []minio.CompletePart
			sums := md5.New()
			for i, p := range parts {
				sum := md5.Sum(p)
				sums.Write(sum[:])
				if i == 1 {
					res, err := core.PutObjectPart(t.Context(), b, "key", id, i+1, bytes.NewReader(p), int64(len(p)), minio.PutObjectPartOptions{})
					if err != nil {
						t.Fatal(err)
					}
					done = append(done, minio.CompletePart{PartNumber: i + 1, ETag: res.ETag, ChecksumCRC32C: res.ChecksumCRC32C})
					continue
				}
				res, err := c.Put(t.Context(), rc.PutRequest{Bucket: b, Key: "key", UploadID: id, PartNumber: i + 1, Src: r.Segment(len(p), p)})
				if err != nil {
					t.Fatal(err)
				}
				if res.ETag != hex.EncodeToString(sum[:]) {
					t.Errorf("part %d: ETag %s, want %x", i+1, res.ETag, sum)
				}
				done = append(done, minio.CompletePart{PartNumber: i + 1, ETag: res.ETag})
			}
			if checksum.IsSet() {
				// Complete wants the checksums, which RC does not bring back.
				listed, err := core.ListObjectParts(t.Context(), b, "key", id, 0, 10)
				if err != nil {
					t.Fatal(err)
				}
				for i, p := range listed.ObjectParts {
					done[i].ChecksumCRC32C = p.ChecksumCRC32C
				}
			}
			res, err := core.CompleteMultipartUpload(t.Context(), b, "key", id, done, minio.PutObjectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if etag := hex.EncodeToString(sums.Sum(nil)) + "-3"; res.ETag != etag {
				t.Errorf("ETag %s, want %s", res.ETag, etag)
			}
			if !bytes.Equal(e.Get(b, "key"), want) {
				t.Error("other bytes than the parts'")
			}
		})
	}
	_, err := c.Put(t.Context(), rc.PutRequest{Bucket: b, Key: "key", UploadID: "no-such-upload", PartNumber: 1, Src: r.Segment(64<<10, nil)})
	wantRC(t, err, http.StatusNotFound, "NoSuchUpload")
}

func wantRC(t *testing.T, err error, status int, code string) {
	t.Helper()
	var re *rc.Error
	if !errors.As(err, &re) || re.Status != status || re.Code != code {
		t.Errorf("error = %v, want status %d %s", err, status, code)
	}
}

func TestConditionalRCPutsInParallel(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true})
	r := testenv.NewRDMA(t)
	c := rootClient(r, e)
	b := e.NewBucket("")
	if _, err := c.Put(t.Context(), rc.PutRequest{Bucket: b, Key: "first", Src: r.Segment(64<<10, nil)}); err != nil {
		t.Fatal(err)
	}
	const writers, rounds = 6, 4
	req := rc.PutRequest{Bucket: b, Key: "key", IfNoneMatch: "*"}
	for round := range rounds {
		var won, lost atomic.Int32
		var next atomic.Value
		var wg sync.WaitGroup
		for w := range writers {
			mine := req
			mine.Src = r.Segment(64<<10, fmt.Appendf(nil, "round %d, writer %d", round, w))
			wg.Go(func() {
				res, err := c.Put(t.Context(), mine)
				var re *rc.Error
				switch {
				case err == nil:
					won.Add(1)
					next.Store(res.ETag)
				case errors.As(err, &re) && re.Status == http.StatusPreconditionFailed:
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
		req = rc.PutRequest{Bucket: b, Key: "key", IfMatch: next.Load().(string)}
	}
	_, err := c.Get(t.Context(), rc.GetRequest{Bucket: b, Key: "key", Dst: r.Segment(64<<10, nil), IfMatch: "0000"})
	wantRC(t, err, http.StatusPreconditionFailed, "PreconditionFailed")
	if _, err := c.Get(t.Context(), rc.GetRequest{Bucket: b, Key: "key", Dst: r.Segment(64<<10, nil), IfMatch: req.IfMatch}); err != nil {
		t.Error(err)
	}
}

func TestRCReadersSeeOneVersion(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true})
	r := testenv.NewRDMA(t)
	c := rootClient(r, e)
	b := e.NewBucket("")
	const size = 100_000
	e.Put(b, "key", data(size))
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			v := data(size)
			v[0] = byte(i)
			_, err := e.S3().PutObject(context.Background(), &s3.PutObjectInput{Bucket: &b, Key: aws.String("key"), Body: bytes.NewReader(v)})
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	dst := r.Segment(size, nil)
	for range 200 {
		got, err := c.Get(t.Context(), rc.GetRequest{Bucket: b, Key: "key", Dst: dst})
		if err != nil {
			t.Fatal(err)
		}
		if sum := md5hex(dst.Buf[:got.N]); sum != got.ETag {
			t.Fatalf("%d bytes with MD5 %s under ETag %s", got.N, sum, got.ETag)
		}
	}
	close(stop)
	writer.Wait()
}

// control is one control request, to be changed by a test before it is sent.
type control struct {
	path   string
	header http.Header
	access string
	secret string
	// afterSign changes the request when it has its signature.
	afterSign func(*http.Request)
	unsigned  bool
	body      string
}

// prepare is a good PREPARE of root's for 1000 bytes.
func prepare(e *testenv.Env, op token.Op, target token.Target) *control {
	r := token.PrepareRequest{
		Token:  token.Token{Transport: 1, GID: [16]byte{0xfd, 0x73, 0x68, 0x6d, 15: 1}, Port: 1},
		PSN:    1,
		Cookie: 1,
		Op:     op,
		Target: target,
		Size:   1000,
	}
	return &control{path: token.PathPrepare, header: r.Header(), access: e.AccessKey, secret: e.SecretKey}
}

// send returns the answer and the code of its error body.
func (c *control) send(t *testing.T, e *testenv.Env) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.Endpoint+c.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = c.header.Clone()
	if !c.unsigned {
		sign(t, req, c.access, c.secret, e.Region, token.EmptyPayloadHash)
	}
	if c.body != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(c.body)), int64(len(c.body))
	}
	if c.afterSign != nil {
		c.afterSign(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Code, RequestId string }
	if len(body) > 0 {
		if err := xml.Unmarshal(body, &answer); err != nil || answer.RequestId == "" {
			t.Errorf("error body %q: %v", body, err)
		}
	}
	if resp.ContentLength < 0 {
		t.Error("the answer has no Content-Length")
	}
	return resp, answer.Code
}

func TestPrepareRefusals(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true})
	b := e.NewBucket("")
	e.Put(b, "key", data(5000))
	e.Put(b, "dir/inner", data(5000))
	target := token.Target{Bucket: b, Key: "key"}
	get := func(change func(*control)) *control {
		c := prepare(e, token.OpGet, target)
		if change != nil {
			change(c)
		}
		return c
	}
	at := func(op token.Op, t token.Target) *control { return prepare(e, op, t) }
	tests := []struct {
		name   string
		c      *control
		status int
		code   string
	}{
		{"good GET", get(nil), 200, ""},
		{"good PUT", at(token.OpPut, target), 200, ""},
		{"unsigned payload", get(func(c *control) {
			c.unsigned = true
			c.afterSign = func(r *http.Request) { sign(t, r, e.AccessKey, e.SecretKey, e.Region, "UNSIGNED-PAYLOAD") }
		}), 200, ""},
		{"missing bucket", at(token.OpGet, token.Target{Bucket: "missing", Key: "key"}), 404, "NoSuchBucket"},
		{"PUT into a missing bucket", at(token.OpPut, token.Target{Bucket: "missing", Key: "key"}), 404, "NoSuchBucket"},
		{"missing key", at(token.OpGet, token.Target{Bucket: b, Key: "missing"}), 404, "NoSuchKey"},
		{"directory", at(token.OpGet, token.Target{Bucket: b, Key: "dir"}), 404, "NoSuchKey"},
		{"key below a file", at(token.OpGet, token.Target{Bucket: b, Key: "key/below"}), 404, "NoSuchKey"},
		{"key that leaves the bucket", at(token.OpGet, token.Target{Bucket: b, Key: "../" + b + "/key"}), 400, "400"},
		{"bucket that is no name", at(token.OpGet, token.Target{Bucket: ".vgwlocks", Key: "key"}), 400, "InvalidBucketName"},
		{"range behind the end", get(func(c *control) { c.header.Set(token.HeaderOffset, "5000") }), 416, "InvalidRange"},
		{"condition that does not hold", get(func(c *control) { c.header.Set("If-Match", `"0"`) }), 412, "PreconditionFailed"},
		{"wrong secret", get(func(c *control) { c.secret = "wrong" }), 403, "SignatureDoesNotMatch"},
		{"unknown access key", get(func(c *control) { c.access = "NOBODY" }), 403, "InvalidAccessKeyId"},
		{"anonymous", get(func(c *control) { c.unsigned = true }), 403, "AccessDenied"},
		{"unsigned header", get(func(c *control) {
			c.afterSign = func(r *http.Request) { r.Header.Set("X-Amz-Rdma-Extra", "1") }
		}), 403, "AccessDenied"},
		{"unsigned condition", get(func(c *control) {
			c.afterSign = func(r *http.Request) { r.Header.Set("If-Match", "*") }
		}), 403, "AccessDenied"},
		{"changed after signing", get(func(c *control) {
			c.afterSign = func(r *http.Request) { r.Header.Set(token.HeaderTarget, "/"+b+"/dir/inner") }
		}), 403, "SignatureDoesNotMatch"},
		{"header twice", get(func(c *control) { c.header[token.HeaderTarget] = []string{"/" + b + "/key", "/" + b + "/dir/inner"} }), 400, "InvalidRdmaRequest"},
		{"no protocol, no signature", get(func(c *control) { c.unsigned = true; c.header.Del(token.HeaderProtocol) }), 501, "NotImplemented"},
		{"other protocol", get(func(c *control) { c.header.Set(token.HeaderProtocol, "hipobj-rc-v3") }), 501, "NotImplemented"},
		{"query", get(func(c *control) { c.path += "?x=1" }), 400, "InvalidRdmaRequest"},
		{"body", get(func(c *control) { c.body = "x" }), 400, "InvalidRdmaRequest"},
		{"session token for root", get(func(c *control) { c.header.Set("X-Amz-Security-Token", "token") }), 400, "InvalidToken"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, code := tt.c.send(t, e)
			if resp.StatusCode != tt.status || code != tt.code {
				t.Errorf("answer %d %s, want %d %s", resp.StatusCode, code, tt.status, tt.code)
			}
			if marked := resp.Header.Get(token.HeaderProtocolStatus) == token.StatusUnsupported; marked != (tt.status == 501) {
				t.Errorf("status %d, marker %v", resp.StatusCode, marked)
			}
			if echo := resp.Header.Get(token.HeaderProtocol); tt.c.header.Get(token.HeaderProtocol) == token.Protocol && echo != token.Protocol {
				t.Errorf("status %d, echo of the protocol %q", resp.StatusCode, echo)
			}
			if tt.status == 200 && (resp.ContentLength != 0 || resp.Header.Get(token.HeaderSession) == "") {
				t.Errorf("success with Content-Length %d, headers %v", resp.ContentLength, resp.Header)
			}
		})
	}
}

// sign signs r with a new signer: the SDK's keeps derived keys by access key
// alone, and a test has several secrets for one. HIP-lib's bridge signs with
// UNSIGNED-PAYLOAD as hash.
func sign(t *testing.T, r *http.Request, accessKey, secretKey, region, hash string) {
	t.Helper()
	r.Header.Set("X-Amz-Content-Sha256", hash)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	creds := aws.Credentials{
		AccessKeyID: accessKey, SecretAccessKey: secretKey, SessionToken: r.Header.Get("X-Amz-Security-Token"),
	}
	if err := signer.SignHTTP(t.Context(), creds, r, hash, "s3", region, time.Now()); err != nil {
		t.Fatal(err)
	}
}

func TestReadOnlyRefusesRCPuts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bucket", "key"), data(2000), 0o644); err != nil {
		t.Fatal(err)
	}
	e := testenv.Start(t, testenv.Options{RDMA: true, Gateway: gateway.Options{Dir: dir, ReadOnly: true}})
	target := token.Target{Bucket: "bucket", Key: "key"}
	if resp, code := prepare(e, token.OpGet, target).send(t, e); resp.StatusCode != 200 {
		t.Errorf("GET: %d %s", resp.StatusCode, code)
	}
	if resp, code := prepare(e, token.OpPut, target).send(t, e); resp.StatusCode != 403 || code != "AccessDenied" {
		t.Errorf("PUT: %d %s, want 403 AccessDenied", resp.StatusCode, code)
	}
}

// RC requests go through owners, policies and object locks like S3 requests.
func TestAccounts(t *testing.T) {
	t.Parallel()
	iamDir := t.TempDir()
	accounts, err := auth.NewInternal(auth.Account{Access: testenv.AccessKey, Secret: testenv.SecretKey}, iamDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alice", "bob"} {
		if err := accounts.CreateAccount(auth.Account{Access: name, Secret: name + "-secret", Role: auth.RoleUserPlus}); err != nil {
			t.Fatal(err)
		}
	}
	e := testenv.Start(t, testenv.Options{RDMA: true, Gateway: gateway.Options{IAMDir: iamDir}})
	ctx := t.Context()
	alice := e.MinioAs("alice", "alice-secret")
	if err := alice.MakeBucket(ctx, "of-alice", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.PutObject(ctx, "of-alice", "key", bytes.NewReader(data(5000)), 5000, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	try := func(who string, op token.Op) int {
		t.Helper()
		c := prepare(e, op, token.Target{Bucket: "of-alice", Key: "key"})
		if who != "root" {
			c.access, c.secret = who, who+"-secret"
		}
		resp, _ := c.send(t, e)
		return resp.StatusCode
	}
	check := func(what string, want map[string][2]int) {
		t.Helper()
		for who, w := range want {
			if got := [2]int{try(who, token.OpGet), try(who, token.OpPut)}; got != w {
				t.Errorf("%s: %s gets %v for GET and PUT, want %v", what, who, got, w)
			}
		}
	}
	check("no policy", map[string][2]int{"root": {200, 200}, "alice": {200, 200}, "bob": {403, 403}, "carol": {403, 403}})

	policy, err := json.Marshal(map[string]any{
		"Version": "2012-10-17",
		"Statement": []map[string]any{{
			"Effect": "Allow", "Principal": map[string]any{"AWS": []string{"bob"}},
			"Action": "s3:GetObject", "Resource": "arn:aws:s3:::of-alice/*",
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := alice.SetBucketPolicy(ctx, "of-alice", string(policy)); err != nil {
		t.Fatal(err)
	}
	check("bob may read", map[string][2]int{"bob": {200, 403}})
}

// Without a device the routes say so; a plain S3 server does not have them.
func TestWithoutRDMA(t *testing.T) {
	t.Parallel()
	marked := testenv.Start(t, testenv.Options{Marker: true})
	for _, path := range []string{token.PathPrepare, token.PathReady, token.PathCancel, token.PathNext} {
		c := prepare(marked, token.OpGet, token.Target{Bucket: "bucket", Key: "key"})
		c.path = path
		resp, code := c.send(t, marked)
		if resp.StatusCode != 501 || code != "NotImplemented" || resp.Header.Get(token.HeaderProtocolStatus) != token.StatusUnsupported ||
			resp.Header.Get(token.HeaderProtocol) != token.Protocol {
			t.Errorf("%s: %d %s, headers %v", path, resp.StatusCode, code, resp.Header)
		}
	}
	plain := testenv.Start(t, testenv.Options{})
	resp, _ := prepare(plain, token.OpGet, token.Target{Bucket: "bucket", Key: "key"}).send(t, plain)
	if resp.StatusCode < 400 || resp.Header.Get(token.HeaderProtocolStatus) != "" {
		t.Errorf("plain server: %d, headers %v", resp.StatusCode, resp.Header)
	}
}

// Requests of the older handshakes get an answer that their clients fall back on.
func TestOlderHandshakes(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true})
	b := e.NewBucket("")
	e.Put(b, "key", []byte("data"))
	v1 := strings.Repeat("01", 44) + ":0000000000001000:0000000000000004"
	cu := "0000000000001000:00000004:00001234:0000:000001:1:" + strings.Repeat("0", 32)
	tests := []struct {
		name, method, token, body string
		status                    int
	}{
		{"v1 GET", http.MethodGet, v1, "", 501},
		{"v1 PUT", http.MethodPut, v1, "", 501},
		{"cuObject GET", http.MethodGet, cu, "", 200},
		{"cuObject PUT without body", http.MethodPut, cu, "", 501},
		{"cuObject PUT with body", http.MethodPut, cu, "data", 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, e.Endpoint+"/"+b+"/key", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(token.HeaderToken, tt.token)
			if tt.body != "" {
				req.ContentLength = int64(len(tt.body))
			}
			sign(t, req, e.AccessKey, e.SecretKey, e.Region, "UNSIGNED-PAYLOAD")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status || resp.Header.Get(token.HeaderReply) != "501" {
				t.Errorf("answer %d with reply %q, want %d with 501: %s", resp.StatusCode, resp.Header.Get(token.HeaderReply), tt.status, body)
			}
			if tt.method == http.MethodGet && tt.status == 200 && string(body) != "data" {
				t.Errorf("body %q", body)
			}
		})
	}
	if got := e.Get(b, "key"); string(got) != "data" {
		t.Errorf("object = %q", got)
	}
}

// A gateway that ends in the middle of transfers, in order or by SIGKILL, fails
// them and nothing else: no transfer hangs, what succeeded is true, a PUT that is
// said not to be stored is not, and a new gateway serves again.
func TestGatewayEndsDuringTransfers(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testenv.Env){"stop": (*testenv.Env).Stop, "kill": (*testenv.Env).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.Start(t, testenv.Options{RDMA: true})
			r := testenv.NewRDMA(t)
			c := rootClient(r, e)
			b := e.NewBucket("")
			whole := data(4 << 20)
			e.Put(b, "key", whole)
			var clients, first sync.WaitGroup // first of each client's transfers
			writers := []*writer{{key: "1", seg: r.Segment(len(whole), whole)}, {key: "2", seg: r.Segment(len(whole), whole)}}
			run := func(transfer func() error) {
				first.Add(1)
				done := sync.OnceFunc(first.Done)
				clients.Go(func() {
					defer done()
					for transfer() == nil {
						done()
					}
				})
			}
			for _, w := range writers {
				run(func() error { return w.put(t, c, b) })
				dst := r.Segment(len(whole), nil)
				run(func() error {
					clear(dst.Buf)
					res, err := c.Get(t.Context(), rc.GetRequest{Bucket: b, Key: "key", Dst: dst})
					var re *rc.Error
					switch {
					case err == nil && (res.N != int64(len(whole)) || res.ETag != md5hex(whole) || !bytes.Equal(dst.Buf, whole)):
						t.Errorf("a GET of %d bytes with ETag %s succeeded with other bytes", res.N, res.ETag)
					case err != nil && (!errors.As(err, &re) || re.Action == rc.ActionUnknown):
						t.Errorf("a GET failed with %v", err)
					}
					return err
				})
			}
			first.Wait()
			end(e)
			clients.Wait()
			e.Restart()
			checkGet(t, r, rootClient(r, e), b, "key", whole, 0, len(whole), md5hex(whole))
			for _, w := range writers {
				w.check(t, e.Get(b, w.key))
			}
		})
	}
}

// writer overwrites an object again and again, each time with other bytes.
type writer struct {
	key    string
	seg    verbs.Segment
	n      uint64 // of the last PUT; it is in the first bytes
	stored uint64 // the last one that succeeded
	err    error  // of the last PUT
}

func (w *writer) put(t *testing.T, c *rc.Client, bucket string) error {
	w.n++
	binary.BigEndian.PutUint64(w.seg.Buf, w.n)
	res, err := c.Put(t.Context(), rc.PutRequest{Bucket: bucket, Key: w.key, Src: w.seg})
	if w.err = err; err == nil {
		w.stored = w.n
		if res.ETag != md5hex(w.seg.Buf) {
			t.Errorf("PUT %d has ETag %s", w.n, res.ETag)
		}
	}
	return err
}

// check compares what is stored with what the PUTs said.
func (w *writer) check(t *testing.T, got []byte) {
	t.Helper()
	var re *rc.Error
	if !errors.As(w.err, &re) {
		t.Errorf("object %s: the last PUT ended with %v", w.key, w.err)
		return
	}
	if len(got) != len(w.seg.Buf) || !bytes.Equal(got[8:], w.seg.Buf[8:]) {
		t.Errorf("object %s is not whole: %d bytes", w.key, len(got))
		return
	}
	n := binary.BigEndian.Uint64(got)
	if n != w.stored && (n != w.n || re.Action != rc.ActionUnknown) {
		t.Errorf("object %s is of PUT %d; %d succeeded last, %d failed with action %v: %v", w.key, n, w.stored, w.n, re.Action, w.err)
	}
}

// When its clients are gone nothing of the gateway's RDMA side is in use, and
// everything can be closed.
func TestNothingLeftOver(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true, InProcess: true})
	b := e.NewBucket("")
	r := testenv.NewRDMA(t)
	c := rootClient(r, e)
	src, dst := r.Segment(1<<20, data(1<<20)), r.Segment(1<<20, nil)
	for i := range 20 {
		key := fmt.Sprint(i)
		if _, err := c.Put(t.Context(), rc.PutRequest{Bucket: b, Key: key, Src: src}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get(t.Context(), rc.GetRequest{Bucket: b, Key: key, Dst: dst}); err != nil {
			t.Fatal(err)
		}
	}
	stats, ok := e.Gateway.RCStats()
	if !ok || stats.Put != 20 || stats.Got != 20 || stats.BytesPut != 20<<20 || stats.BytesGot != 20<<20 || stats.Failed != 0 {
		t.Errorf("stats = %+v", stats)
	}
	c.Close()
	// A finished PUT's queue pair stays a moment, to repeat an acknowledgement that was lost.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		stats, _ = e.Gateway.RCStats()
		qps, _ := e.Gateway.QPStats()
		if stats.Sessions == 0 && stats.StagingInUse == 0 && qps.InUse == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the client's end: %+v, queue pairs %+v", stats, qps)
		}
	}
	if stats.Quarantined != 0 {
		t.Errorf("quarantined: %+v", stats)
	}
	e.Stop()
}
