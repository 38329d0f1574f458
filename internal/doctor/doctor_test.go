package doctor_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/doctor"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/store"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// options are those of a user of e.
func options(e *testenv.Env, bucket string) doctor.Options {
	return doctor.Options{
		Store: store.Options{
			Endpoint: e.Endpoint, Region: e.Region,
			Credentials: credentials.NewStaticV4(e.AccessKey, e.SecretKey, ""),
		},
		Bucket: bucket,
		// Below what any machine that runs tests can spare.
		CacheSize: 16 << 20,
	}
}

func examine(t *testing.T, o doctor.Options) *doctor.Report {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	r, err := doctor.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Checks {
		if c.Fact == "" || strings.Contains(c.Fact, "\n") || (c.Remedy != "") != (c.Status == doctor.Warn || c.Status == doctor.Fail) {
			t.Errorf("check without fact, or a remedy that does not fit the status: %+v", c)
		}
	}
	if r.Verdict == "" {
		t.Error("no verdict")
	}
	return r
}

// want checks status and fact of one check.
func want(t *testing.T, r *doctor.Report, name string, status doctor.Status, fact string) doctor.Check {
	t.Helper()
	c := r.Find(name)
	if c == nil {
		t.Fatalf("no check %q in %s", name, text(r))
	}
	if c.Status != status || !strings.Contains(c.Fact, fact) {
		t.Errorf("%s is %s: %s; want %s with %q", name, c.Status, c.Fact, status, fact)
	}
	return *c
}

func text(r *doctor.Report) string {
	var b bytes.Buffer
	p := doctor.NewPrinter(&b)
	p.Head(r)
	for _, c := range r.Checks {
		p.Check(c)
	}
	p.End(r)
	return b.String()
}

func objects(t *testing.T, e *testenv.Env, bucket string) []string {
	t.Helper()
	var keys []string
	for o := range e.Minio().ListObjects(context.Background(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

func TestHealthy(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	bucket := e.NewBucket("")
	o := options(e, bucket)
	o.Prefix = "below/"
	var seen []doctor.Check
	o.OnCheck = func(c doctor.Check) { seen = append(seen, c) }
	r := examine(t, o)
	if r.Failures != 0 || r.Warnings != 0 {
		t.Errorf("not all is well:\n%s", text(r))
	}
	want(t, r, "fuse", doctor.OK, "kernel FUSE 7.")
	want(t, r, "route", doctor.OK, "lo")
	want(t, r, "connect", doctor.OK, "TCP")
	want(t, r, "clock", doctor.OK, "")
	want(t, r, "credentials", doctor.OK, "no expiry")
	device := want(t, r, "device", doctor.OK, "shm port 1")
	if len(device.Details) == 0 || !strings.Contains(device.Details[0], "this GID because") {
		t.Errorf("no reason for the GID: %v", device.Details)
	}
	if port := want(t, r, "port", doctor.OK, "ACTIVE"); !strings.Contains(strings.Join(port.Details, ""), "chosen") {
		t.Errorf("no GID is marked as chosen: %v", port.Details)
	}
	want(t, r, "protocol", doctor.OK, "keep")
	want(t, r, "http transfer", doctor.OK, "same bytes")
	want(t, r, "rdma transfer", doctor.OK, "same bytes")
	if !strings.Contains(r.Verdict, "by RDMA on shm") || strings.Contains(r.Verdict, "Not tried") {
		t.Errorf("verdict: %s", r.Verdict)
	}
	if len(seen) != len(r.Checks) {
		t.Errorf("%d checks told, %d reported", len(seen), len(r.Checks))
	}
	if left := objects(t, e, bucket); len(left) != 0 {
		t.Errorf("objects left: %v", left)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{string(raw), text(r)} {
		if strings.Contains(out, e.SecretKey) || strings.Contains(out, e.AccessKey) {
			t.Error("a key is in the report")
		}
	}
}

func TestRDMAOff(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	o := options(e, e.NewBucket(""))
	o.RDMA = store.ModeOff
	r := examine(t, o)
	want(t, r, "device", doctor.Skip, "switched off")
	want(t, r, "http transfer", doctor.OK, "same bytes")
	want(t, r, "rdma transfer", doctor.Skip, "switched off")
	if r.Failures+r.Warnings != 0 || !strings.Contains(r.Verdict, "by HTTP: RDMA is switched off") {
		t.Errorf("verdict %q in\n%s", r.Verdict, text(r))
	}
}

func TestServerWithoutProtocol(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	o := options(e, e.NewBucket(""))
	r := examine(t, o)
	want(t, r, "protocol", doctor.Warn, "does not speak")
	want(t, r, "http transfer", doctor.OK, "same bytes")
	want(t, r, "rdma transfer", doctor.Skip, "does not speak")
	if r.Failures != 0 || !strings.Contains(r.Verdict, "by HTTP") {
		t.Errorf("verdict %q in\n%s", r.Verdict, text(r))
	}
	o.RDMA = store.ModeRequire
	want(t, examine(t, o), "protocol", doctor.Fail, "does not speak")
}

func TestServerWithoutDevice(t *testing.T) {
	e := testenv.Start(t, testenv.Options{Marker: true})
	r := examine(t, options(e, e.NewBucket("")))
	want(t, r, "protocol", doctor.OK, "no capabilities")
	c := want(t, r, "rdma transfer", doctor.Warn, "501")
	if !strings.Contains(c.Remedy, "start the server with RDMA") {
		t.Errorf("remedy: %s", c.Remedy)
	}
	if !strings.Contains(r.Verdict, "by HTTP") {
		t.Errorf("verdict: %s", r.Verdict)
	}
}

// The endpoint is an address of documentation, which is not on this machine, so
// that no device leads to it. Whether something answers there does not matter.
func TestNoDevice(t *testing.T) {
	for _, test := range []struct {
		name   string
		mode   store.Mode
		device string
		status doctor.Status
	}{
		{"auto", store.ModeAuto, "", doctor.Warn},
		{"require", store.ModeRequire, "", doctor.Fail},
		{"by name", store.ModeAuto, "mlx9_9", doctor.Fail},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := examine(t, doctor.Options{
				Store: store.Options{Endpoint: "http://198.51.100.1:9", Credentials: credentials.NewStaticV4("a", "b", "")},
				RDMA:  test.mode, Device: test.device, Timeout: 100 * time.Millisecond, Bucket: "b",
			})
			want(t, r, "device", test.status, "no such device")
		})
	}
}

// The device of a mount may be a list, and what is asked of its path goes for the
// transfers of the examination too.
func TestPathOptions(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	o := options(e, e.NewBucket(""))
	index := 0
	o.Device, o.Path = "shm:1, shm", provider.Options{GIDIndex: &index, PathMTU: verbs.MTU4096, TrafficClass: 106}
	r := examine(t, o)
	c := want(t, r, "device", doctor.OK, "shm port 1, GID 0, path MTU 4096")
	if details := strings.Join(c.Details, "\n"); !strings.Contains(details, "asked for by index") || !strings.Contains(details, "traffic class 106") {
		t.Errorf("details: %v", c.Details)
	}
	want(t, r, "rdma transfer", doctor.OK, "same bytes")
	if !strings.Contains(r.Verdict, "by RDMA on shm, shm") {
		t.Errorf("verdict: %s", r.Verdict)
	}
	// Both ends need the same MTU.
	o.Path.PathMTU = verbs.MTU1024
	r = examine(t, o)
	want(t, r, "device", doctor.OK, "path MTU 1024")
	want(t, r, "rdma transfer", doctor.Fail, "")
	for fact, bend := range map[string]func(*doctor.Options){
		"no GID with index 77":     func(o *doctor.Options) { i := 77; o.Path.GIDIndex = &i },
		"no port 9":                func(o *doctor.Options) { o.Device = "shm:9" },
		"not a device with a port": func(o *doctor.Options) { o.Device = "shm:x" },
	} {
		bad := o
		bend(&bad)
		r := examine(t, bad)
		want(t, r, "device", doctor.Fail, fact)
		want(t, r, "rdma transfer", doctor.Skip, "no device")
	}
}

// A server whose software device is another user's cannot be reached by it.
func TestSoftwareDeviceOfAnotherUser(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	o := options(e, e.NewBucket(""))
	o.RDMA = store.ModeRequire
	o.Store.Endpoint = proxy(t, e, func(r *http.Response) error {
		if reply := r.Header.Get(token.HeaderReply); reply != "" && r.StatusCode == http.StatusOK {
			tok, err := token.ParseReply(reply)
			if err != nil {
				return err
			}
			tok.GID[15] ^= 1 // nobody's
			r.Header.Set(token.HeaderReply, tok.Reply())
		}
		return nil
	})
	r := examine(t, o)
	c := want(t, r, "rdma transfer", doctor.Fail, "between processes of one user")
	if !strings.Contains(c.Remedy, "as one user") {
		t.Errorf("remedy: %s", c.Remedy)
	}
}

func TestEndpointDown(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	e.Stop()
	r := examine(t, options(e, "any"))
	want(t, r, "connect", doctor.Fail, "refused")
	for _, name := range []string{"clock", "protocol", "access", "transfers"} {
		want(t, r, name, doctor.Skip, "")
	}
}

func TestUnknownName(t *testing.T) {
	o := doctor.Options{Store: store.Options{Endpoint: "http://no-such-host.invalid", Credentials: credentials.NewStaticV4("a", "b", "")}, Timeout: time.Second}
	r := examine(t, o)
	want(t, r, "name", doctor.Fail, "no-such-host.invalid")
	want(t, r, "connect", doctor.Skip, "no address")
}

func TestBucketAndCredentials(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	bucket := e.NewBucket("")
	const wrong = "not-the-secret-of-anybody"
	for _, test := range []struct {
		name   string
		edit   func(*doctor.Options)
		check  string
		status doctor.Status
		fact   string
	}{
		{"missing bucket", func(o *doctor.Options) { o.Bucket = "no-such-bucket" }, "access", doctor.Fail, "no such bucket"},
		{"wrong secret", func(o *doctor.Options) {
			o.Store.Credentials = credentials.NewStaticV4(e.AccessKey, wrong, "")
		}, "access", doctor.Fail, "refuses the credentials"},
		{"no bucket", func(o *doctor.Options) { o.Bucket = "" }, "access", doctor.OK, "list of buckets"},
		{"no bucket, no transfer", func(o *doctor.Options) { o.Bucket = "" }, "transfers", doctor.Skip, "no bucket"},
		{"expired", func(o *doctor.Options) { o.Store.Credentials = expiring(e, -time.Hour) }, "credentials", doctor.Fail, "expired"},
		{"nearly expired", func(o *doctor.Options) { o.Store.Credentials = expiring(e, 5*time.Minute) }, "credentials", doctor.Warn, "until"},
		{"good for long", func(o *doctor.Options) { o.Store.Credentials = expiring(e, 5*time.Hour) }, "credentials", doctor.OK, "until"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := options(e, bucket)
			test.edit(&o)
			r := examine(t, o)
			if r.Failures == 0 && o.Bucket == "" && !strings.Contains(r.Verdict, "Not tried") {
				t.Errorf("verdict: %s", r.Verdict)
			}
			want(t, r, test.check, test.status, test.fact)
			if out := text(r); strings.Contains(out, wrong) {
				t.Errorf("the secret is shown:\n%s", out)
			}
		})
	}
}

func expiring(e *testenv.Env, in time.Duration) *credentials.Credentials {
	return credentials.New(&credentials.Static{Value: credentials.Value{
		AccessKeyID: e.AccessKey, SecretAccessKey: e.SecretKey, SignerType: credentials.SignatureV4, Expiration: time.Now().Add(in),
	}})
}

func TestNoCredentials(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	o := options(e, e.NewBucket(""))
	o.Store.Credentials = nil
	r := examine(t, o)
	want(t, r, "credentials", doctor.Fail, "no credentials found")
	want(t, r, "protocol", doctor.Skip, "")
	want(t, r, "transfers", doctor.Skip, "")
}

// proxy stands before e; answers may be changed on their way.
func proxy(t *testing.T, e *testenv.Env, change func(*http.Response) error) string {
	t.Helper()
	u, err := url.Parse(e.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(u)
			p.Out.Host = p.In.Host // it is signed
		},
		ModifyResponse: change,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	t.Cleanup(s.Close)
	return s.URL
}

func TestClockSkew(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	for _, test := range []struct {
		skew   time.Duration
		status doctor.Status
		fact   string
	}{
		{0, doctor.OK, ""},
		{time.Minute, doctor.OK, "ahead"},
		{7 * time.Minute, doctor.Warn, "ahead"},
		{-7 * time.Minute, doctor.Warn, "behind"},
		{20 * time.Minute, doctor.Fail, "ahead"},
		{-20 * time.Minute, doctor.Fail, "behind"},
	} {
		t.Run(test.skew.String(), func(t *testing.T) {
			o := options(e, "")
			o.Store.Endpoint = proxy(t, e, func(r *http.Response) error {
				r.Header.Set("Date", time.Now().Add(test.skew).UTC().Format(http.TimeFormat))
				return nil
			})
			want(t, examine(t, o), "clock", test.status, test.fact)
		})
	}
}

// The server's answer names a key that it does not have, so that the write of
// the PUT is refused by the other end.
func TestCompletionErrorIsExplained(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	o := options(e, e.NewBucket(""))
	var answers atomic.Int64
	o.Store.Endpoint = proxy(t, e, func(r *http.Response) error {
		if r.Header.Get(token.HeaderMRRKey) != "" {
			answers.Add(1)
			r.Header.Set(token.HeaderMRRKey, "7fffffff")
		}
		return nil
	})
	r := examine(t, o)
	if answers.Load() == 0 {
		t.Fatal("no answer with a key came by")
	}
	c := want(t, r, "rdma transfer", doctor.Fail, "REM_ACCESS_ERR")
	if !strings.Contains(c.Remedy, "REM_ACCESS_ERR") || !strings.Contains(c.Remedy, "Usual cause") {
		t.Errorf("remedy: %s", c.Remedy)
	}
	want(t, r, "http transfer", doctor.OK, "same bytes")
}

func TestReadOnlyWritesNothing(t *testing.T) {
	dir := t.TempDir()
	for _, bucket := range []string{"empty", "full"} {
		if err := os.Mkdir(filepath.Join(dir, bucket), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "full", "big"), bytes.Repeat([]byte("0123456789"), 200_000), 0o644); err != nil {
		t.Fatal(err)
	}
	// A server that refuses every write shows that none is tried.
	e := testenv.Start(t, testenv.Options{RDMA: true, Gateway: gateway.Options{Dir: dir, ReadOnly: true}})
	o := options(e, "full")
	o.ReadOnly = true
	r := examine(t, o)
	for _, name := range []string{"http transfer", "rdma transfer"} {
		want(t, r, name, doctor.OK, "1024 KiB of big")
	}
	o.Bucket = "empty"
	r = examine(t, o)
	want(t, r, "rdma transfer", doctor.Skip, "read-only")
	if r.Failures != 0 {
		t.Errorf("failures:\n%s", text(r))
	}
	o.ReadOnly = false
	want(t, examine(t, o), "http transfer", doctor.Fail, "")
}

func TestInterruptRemovesTheObject(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	bucket := e.NewBucket("")
	o := options(e, bucket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var puts atomic.Int64
	o.Store.Endpoint = proxy(t, e, func(r *http.Response) error {
		if r.Request.Method == http.MethodPut {
			puts.Add(1)
			cancel()
		}
		return nil
	})
	if _, err := doctor.Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if puts.Load() == 0 {
		t.Error("nothing had been stored")
	}
	if left := objects(t, e, bucket); len(left) != 0 {
		t.Errorf("objects left: %v", left)
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	o := doctor.Options{Store: store.Options{Endpoint: s.URL, Credentials: credentials.NewStaticV4("a", "b", "")}}
	if c := want(t, examine(t, o), "tls", doctor.Fail, "certificate"); !strings.Contains(c.Remedy, "SSL_CERT_FILE") {
		t.Errorf("remedy: %s", c.Remedy)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	o.Store.Endpoint = strings.Replace(plain.URL, "http:", "https:", 1)
	if c := want(t, examine(t, o), "tls", doctor.Fail, ""); !strings.Contains(c.Remedy, "http://") {
		t.Errorf("remedy: %s", c.Remedy)
	}
}

func TestBadEndpoint(t *testing.T) {
	if _, err := doctor.Run(t.Context(), doctor.Options{Store: store.Options{Endpoint: "ftp://host"}}); err == nil {
		t.Error("no error")
	}
}

func TestStatusTable(t *testing.T) {
	table := doctor.StatusTable()
	if len(table) != int(verbs.WCGeneralErr)+1 {
		t.Errorf("%d entries, want one for each status", len(table))
	}
	for _, h := range table {
		if h.Meaning == "" || len(h.Causes) == 0 || len(h.Checks) == 0 {
			t.Errorf("entry of %s is not complete", h.Name)
		}
		for _, name := range []string{h.Name, strings.ToLower(h.Name), "IBV_WC_" + h.Name} {
			got, err := doctor.LookupStatus(name)
			if err != nil || len(got) != 1 || got[0].Status != h.Status {
				t.Errorf("look-up of %s: %v, %v", name, got, err)
			}
		}
		var b bytes.Buffer
		doctor.PrintStatus(&b, h)
		for _, s := range append(append([]string{h.Name, h.Meaning}, h.Causes...), h.Checks...) {
			if !strings.Contains(b.String(), s) {
				t.Errorf("%q is not printed of %s", s, h.Name)
			}
		}
	}
	if got, err := doctor.LookupStatus("12"); err != nil || got[0].Status != verbs.WCRetryExcErr {
		t.Errorf("look-up of 12: %v, %v", got, err)
	}
	if got, err := doctor.LookupStatus("all"); err != nil || len(got) != len(table) {
		t.Errorf("look-up of all: %d entries, %v", len(got), err)
	}
	if _, err := doctor.LookupStatus("NO_SUCH"); err == nil || !strings.Contains(err.Error(), "RETRY_EXC_ERR") {
		t.Errorf("look-up of an unknown name: %v", err)
	}
}
