package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/internal/bench"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/store"
)

func options(e *testenv.Env, bucket string) bench.Options {
	return bench.Options{
		Store: store.Options{
			Endpoint: e.Endpoint, Region: e.Region,
			Credentials: credentials.NewStaticV4(e.AccessKey, e.SecretKey, ""),
		},
		Bucket: bucket, Prefix: "some/where/",
		Sizes: []int64{64 << 10, 1 << 20}, Concurrency: []int{1, 3},
		// Each slice still makes a transfer of each worker.
		Time: 20 * time.Millisecond,
	}
}

func empty(t *testing.T, e *testenv.Env, bucket string) {
	t.Helper()
	for o := range e.Minio().ListObjects(context.Background(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		t.Errorf("object left: %s", o.Key)
	}
}

func lanes(p bench.Point) (names []string) {
	for _, m := range p.Lanes {
		names = append(names, m.Lane+" by "+m.Via)
	}
	return names
}

func TestBoth(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	bucket := e.NewBucket("")
	o := options(e, bucket)
	var words []string
	o.Progress = func(s string) { words = append(words, s) }
	r, err := bench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	empty(t, e, bucket)
	if len(r.Points) != 2*2*2 {
		t.Errorf("%d points", len(r.Points))
	}
	if r.Device == nil || r.Device.Name != "shm" || r.Device.MTU == 0 {
		t.Errorf("device %+v", r.Device)
	}
	if r.Kernel == "" || r.CPUs == 0 || r.Version == "" || len(words) == 0 {
		t.Errorf("kernel %q, %d CPUs, version %q, %d words of progress", r.Kernel, r.CPUs, r.Version, len(words))
	}
	seen := map[string]bool{}
	for _, p := range r.Points {
		seen[fmt.Sprint(p.Op, p.Size, p.Concurrency)] = true
		if got := lanes(p); !slices.Equal(got, []string{"rdma by rdma", "http by http"}) {
			t.Errorf("%s %d × %d: lanes %v", p.Op, p.Size, p.Concurrency, got)
		}
		if p.Ratio == nil || *p.Ratio <= 0 {
			t.Errorf("%s %d × %d: no ratio", p.Op, p.Size, p.Concurrency)
		}
		for _, m := range p.Lanes {
			l := m.Latency
			if m.Transfers < uint64(p.Concurrency) || m.Bytes != int64(m.Transfers)*p.Size || m.Seconds <= 0 || m.MBps <= 0 || m.IOPS <= 0 {
				t.Errorf("%s %d × %d: %+v", p.Op, p.Size, p.Concurrency, m)
			}
			if l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.Max {
				t.Errorf("latencies are out of order: %+v", l)
			}
		}
	}
	if len(seen) != len(r.Points) {
		t.Errorf("only %d different points", len(seen))
	}

	var table bytes.Buffer
	if err := r.Print(&table); err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(table.String(), "\n\n")
	if lines := strings.Count(rows, "\n"); lines != 1+2*len(r.Points) {
		t.Errorf("table of %d lines:\n%s", lines, table.String())
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back bench.Result
	if err := json.Unmarshal(raw, &back); err != nil || len(back.Points) != len(r.Points) {
		t.Errorf("JSON: %v, %d points", err, len(back.Points))
	}
	if strings.Contains(string(raw), e.SecretKey) {
		t.Error("the secret is in the result")
	}
}

func TestModes(t *testing.T) {
	withRDMA := testenv.Start(t, testenv.Options{RDMA: true})
	plain := testenv.Start(t, testenv.Options{})
	for _, test := range []struct {
		name  string
		e     *testenv.Env
		mode  string
		size  int64
		lanes []string
		note  string
	}{
		{"auto", withRDMA, bench.ModeAuto, 1 << 20, []string{"auto by rdma"}, ""},
		{"auto, plain server", plain, bench.ModeAuto, 1 << 20, []string{"auto by http"}, ""},
		{"require", withRDMA, bench.ModeRequire, 1 << 20, []string{"rdma by rdma"}, ""},
		{"off", withRDMA, bench.ModeOff, 1 << 20, []string{"http by http"}, ""},
		{"both, plain server", plain, bench.ModeBoth, 1 << 20, []string{"http by http"}, "RDMA is not measured"},
		{"too small for RDMA", withRDMA, bench.ModeBoth, 4 << 10, []string{"http by http"}, "below 64 KiB"},
		{"longer than one transfer", withRDMA, bench.ModeRequire, 20 << 20, []string{"rdma by rdma"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			bucket := test.e.NewBucket("")
			o := options(test.e, bucket)
			o.Mode, o.Sizes, o.Concurrency, o.Ops = test.mode, []int64{test.size}, []int{2}, []bench.Op{bench.Get}
			r, err := bench.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Points) != 1 || !slices.Equal(lanes(r.Points[0]), test.lanes) {
				t.Errorf("points %+v, want lanes %v", r.Points, test.lanes)
			}
			if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, test.note) || test.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, test.note)
			}
			if r.Points[0].Ratio != nil {
				t.Error("a ratio of one lane")
			}
			empty(t, test.e, bucket)
		})
	}
}

func TestRequireOnPlainServer(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	bucket := e.NewBucket("")
	o := options(e, bucket)
	o.Mode = bench.ModeRequire
	if _, err := bench.Run(t.Context(), o); !errors.Is(err, store.ErrRDMA) {
		t.Errorf("error = %v", err)
	}
	empty(t, e, bucket)
}

func TestInterrupt(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	bucket := e.NewBucket("")
	for _, op := range []bench.Op{bench.Get, bench.Put} {
		o := options(e, bucket)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o.Ops, o.Time = []bench.Op{op}, time.Hour
		// Told before the first slice, which would take a quarter of an hour.
		o.Progress = func(s string) {
			if strings.Contains(s, "1/") {
				cancel()
			}
		}
		if _, err := bench.Run(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error = %v", op, err)
		}
		empty(t, e, bucket)
	}
}

// A server or proxy that changes bytes must not get a number.
func TestWrongBytes(t *testing.T) {
	e := testenv.Start(t, testenv.Options{})
	u, err := url.Parse(e.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(u)
			p.Out.Host = p.In.Host // it is signed
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet && strings.Contains(r.Request.URL.Path, ".s3rdmafs-bench-") {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return err
				}
				body[len(body)/2] ^= 1
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			return nil
		},
	})
	defer s.Close()
	bucket := e.NewBucket("")
	o := options(e, bucket)
	o.Mode, o.Store.Endpoint = bench.ModeOff, s.URL
	if _, err := bench.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not those that were stored") {
		t.Errorf("error = %v", err)
	}
	empty(t, e, bucket)
}

func TestBadOptions(t *testing.T) {
	e := testenv.Start(t, testenv.Options{RDMA: true})
	bucket := e.NewBucket("")
	for name, test := range map[string]struct {
		edit func(*bench.Options)
		want string
	}{
		"no bucket":      {func(o *bench.Options) { o.Bucket = "" }, "no bucket"},
		"unknown mode":   {func(o *bench.Options) { o.Mode = "perhaps" }, "perhaps"},
		"size zero":      {func(o *bench.Options) { o.Sizes = []int64{0} }, "size"},
		"no transfers":   {func(o *bench.Options) { o.Concurrency = []int{0} }, "concurrency"},
		"unknown op":     {func(o *bench.Options) { o.Ops = []bench.Op{"list"} }, "get and put"},
		"memory":         {func(o *bench.Options) { o.Memory = 2 << 20 }, "lower --sizes"},
		"missing bucket": {func(o *bench.Options) { o.Bucket = "no-such-bucket" }, "no such bucket"},
		"unknown device": {func(o *bench.Options) { o.Device = "mlx9_9" }, "mlx9_9"},
		"no such GID": {func(o *bench.Options) {
			index := 77
			o.Device, o.Path.GIDIndex = "shm", &index
		}, "no GID with index 77"},
		"wrong secret": {func(o *bench.Options) {
			o.Store.Credentials = credentials.NewStaticV4(e.AccessKey, "wrong", "")
		}, "refuses the credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(e, bucket)
			test.edit(&o)
			if _, err := bench.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want something with %q", err, test.want)
			}
			empty(t, e, bucket)
		})
	}
}
