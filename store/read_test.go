package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/internal/testenv"
)

func TestReadRanges(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	data := noise(3<<20+17, 1)
	env.Put(b, "k", data)
	s := open(t, env, env.Endpoint, func(o *Options) { o.ChunkSize = 256 << 10 })
	i, err := s.Head(context.Background(), b, "k")
	if err != nil {
		t.Fatal(err)
	}
	size := int64(len(data))
	rng := rand.New(rand.NewPCG(1, 2))
	ranges := [][2]int64{{0, size}, {0, 1}, {size - 1, 1}, {1, 1}, {0, size - 1}, {1, size - 1}, {0, 256 << 10}, {4095, 256<<10 + 1}}
	for range 20 {
		off := rng.Int64N(size)
		ranges = append(ranges, [2]int64{off, 1 + rng.Int64N(size-off)})
	}
	var total int64
	for _, r := range ranges {
		buf := make([]byte, r[1])
		n, err := s.Read(context.Background(), ReadRequest{Bucket: b, Key: "k", ETag: i.ETag, Off: r[0], Dst: plain(buf), ObjectSize: size})
		if err != nil || int64(n) != r[1] {
			t.Fatalf("%v: %d, %v", r, n, err)
		}
		wantSame(t, buf, data[r[0]:r[0]+r[1]])
		total += r[1]
	}
	st := s.Stats()
	if st.Read.HTTP.Bytes != total || st.Read.RDMA.Bytes != 0 || st.InFlight != 0 {
		t.Errorf("stats %+v, want %d bytes read by HTTP", st, total)
	}
	for _, r := range [][2]int64{{-1, 1}, {size, 1}, {size - 1, 2}, {0, size + 1}} {
		_, err := s.Read(context.Background(), ReadRequest{Bucket: b, Key: "k", ETag: i.ETag, Off: r[0], Dst: plain(make([]byte, r[1])), ObjectSize: size})
		wantKind(t, err, ErrBadRange)
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct{ n, limit int64 }{
		{1, 8 << 20}, {8 << 20, 8 << 20}, {8<<20 + 1, 8 << 20}, {16<<20 - 1, 8 << 20}, {100<<20 + 5, 16 << 20}, {5000, 4097}, {70 << 10, 64 << 10},
	} {
		next, smallest := int64(0), c.limit
		for _, p := range split(c.n, c.limit) {
			if p.off != next || p.n < 1 || p.n > c.limit {
				t.Errorf("%+v: piece %+v after %d", c, p, next)
			}
			next += p.n
			smallest = min(smallest, p.n)
		}
		if next != c.n {
			t.Errorf("%+v: pieces end at %d", c, next)
		}
		if c.n >= 2*c.limit && smallest < c.limit/2 {
			t.Errorf("%+v: a piece of %d is too small for RDMA without need", c, smallest)
		}
	}
}

// faulty is an object behind a proxy that misbehaves.
type faulty struct {
	s     *Store
	p     *faultproxy.Proxy
	env   *testenv.Env
	data  []byte
	b     string
	whole ReadRequest // Dst still to be set
}

func newFaulty(t *testing.T, size int, change func(*Options)) *faulty {
	env := testenv.Start(t, testenv.Options{})
	f := &faulty{env: env, b: env.NewBucket(""), p: faultproxy.Start(t, env.Endpoint), data: noise(size, 3)}
	f.s = open(t, env, f.p.URL, change)
	i := mustPut(t, f.s, PutRequest{Bucket: f.b, Key: "k", Src: plain(f.data)})
	f.whole = ReadRequest{Bucket: f.b, Key: "k", ETag: i.ETag, ObjectSize: i.Size}
	return f
}

// read reads n bytes at off and compares them if it succeeds.
func (f *faulty) read(t *testing.T, ctx context.Context, off, n int) error {
	t.Helper()
	r := f.whole
	buf := make([]byte, n)
	r.Off, r.Dst = int64(off), plain(buf)
	_, err := f.s.Read(ctx, r)
	if err == nil {
		wantSame(t, buf, f.data[off:off+n])
	}
	return err
}

func TestReadSurvives(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, 1<<20, func(o *Options) { o.Timeout = 300 * time.Millisecond })
	for name, fault := range map[string]faultproxy.Fault{
		"503":                  faultproxy.Status(503, "SlowDown"),
		"503 without body":     faultproxy.Status(503, ""),
		"500":                  faultproxy.Status(500, "InternalError"),
		"408":                  faultproxy.Status(408, "RequestTimeout"),
		"reset":                faultproxy.ResetBefore(),
		"reset after":          faultproxy.ResetAfter(),
		"truncated":            faultproxy.Truncate(1000),
		"nothing":              faultproxy.Truncate(0),
		"silence":              faultproxy.BlackHole(),
		"silence in the midst": faultproxy.Stall(3000),
		"ignored range":        faultproxy.IgnoreRange(),
		"other range":          faultproxy.Header("Content-Range", "bytes 0-9999/1048576"),
		"502 page":             faultproxy.HTML(502),
		"404 page":             faultproxy.HTML(404),
	} {
		t.Run(name, func(t *testing.T) {
			f.p.Clear()
			before := f.s.Stats().Retries
			rule := f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Times: 2, Fault: fault})
			if err := f.read(t, context.Background(), 100, 10000); err != nil {
				t.Fatal(err)
			}
			// net/http repeats a GET by itself when a kept connection was reset.
			if f.p.Hits(rule) != 2 || f.s.Stats().Retries == before {
				t.Errorf("%d faults, %d retries", f.p.Hits(rule), f.s.Stats().Retries-before)
			}
		})
	}
}

// A broken transfer goes on where it broke.
func TestReadContinues(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, 1<<20, nil)
	f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Times: 1, Fault: faultproxy.Truncate(300000)})
	if err := f.read(t, context.Background(), 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	gets := f.p.Requests("GET")
	if len(gets) != 2 || gets[0].Header.Get("Range") != "" || gets[1].Header.Get("Range") != "bytes=300000-1048575" {
		t.Errorf("%d requests, the last for %q", len(gets), gets[len(gets)-1].Header.Get("Range"))
	}
}

// A slow server is not a dead one.
func TestReadWaitsForSlowServer(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, 100<<10, func(o *Options) { o.Timeout = 500 * time.Millisecond })
	f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Fault: faultproxy.Slow(10<<10, 100*time.Millisecond)})
	if err := f.read(t, context.Background(), 0, 100<<10); err != nil {
		t.Fatal(err)
	}
	if n := f.s.Stats().Retries; n != 0 {
		t.Errorf("%d retries of a transfer that went on all the time", n)
	}
}

func TestReadNeverBelieves(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, 1<<20, func(o *Options) { o.RetryFor = 50 * time.Millisecond })
	for name, c := range map[string]struct {
		fault faultproxy.Fault
		kind  error
	}{
		"ignored range":     {faultproxy.IgnoreRange(), ErrBadAnswer},
		"other range":       {faultproxy.Header("Content-Range", "bytes 0-9999/1048576"), ErrBadAnswer},
		"no range":          {faultproxy.Header("Content-Range", ""), ErrBadAnswer},
		"nonsense as range": {faultproxy.Header("Content-Range", "pages 1-2"), ErrBadAnswer},
		"other size":        {faultproxy.Header("Content-Range", "bytes 100-10099/1048577"), ErrChanged},
		"other version":     {faultproxy.Header("Etag", `"0123456789abcdef0123456789abcdef"`), ErrChanged},
		"no version":        {faultproxy.Header("Etag", ""), ErrBadAnswer},
		"gone":              {faultproxy.Status(404, "NoSuchKey"), ErrNotFound},
		"other object now":  {faultproxy.Status(412, "PreconditionFailed"), ErrChanged},
		"shorter now":       {faultproxy.Status(416, "InvalidRange"), ErrChanged},
		"forbidden":         {faultproxy.Status(403, "AccessDenied"), ErrDenied},
		"archived":          {faultproxy.Status(403, "InvalidObjectState"), ErrArchived},
		"busy":              {faultproxy.Status(503, "SlowDown"), ErrThrottled},
		"broken":            {faultproxy.Status(500, "InternalError"), ErrUnavailable},
		"reset":             {faultproxy.ResetBefore(), ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			f.p.Clear()
			f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Fault: c.fault})
			wantKind(t, f.read(t, context.Background(), 100, 10000), c.kind)
		})
	}
	f.p.Clear()
	if err := f.read(t, context.Background(), 100, 10000); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// Of a read in chunks no byte is believed when one of them is of another version.
func TestReadOfObjectChangedInBetween(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, 1<<20, func(o *Options) { o.ChunkSize = 64 << 10; o.Parallel = 1 })
	f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Skip: 5, Times: 1, Fault: func(x *faultproxy.Exchange) {
		f.env.Put(f.b, "k", noise(1<<20, 4))
		if resp := x.Forward(); resp != nil {
			x.Reply(resp)
		}
	}})
	wantKind(t, f.read(t, context.Background(), 0, 1<<20), ErrChanged)
}

func TestReadEndsWithContext(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, 1<<20, nil)
	t.Run("cancelled while waiting for an answer", func(t *testing.T) {
		f.p.Clear()
		ctx, cancel := context.WithCancel(context.Background())
		f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Fault: func(x *faultproxy.Exchange) {
			cancel()
			<-x.R.Context().Done()
		}})
		wantKind(t, f.read(t, ctx, 0, 1000), context.Canceled)
	})
	t.Run("cancelled between tries", func(t *testing.T) {
		f.p.Clear()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Times: 1, Fault: faultproxy.Status(503, "SlowDown")})
		f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Fault: func(x *faultproxy.Exchange) {
			cancel()
			faultproxy.Status(503, "SlowDown")(x)
		}})
		err := f.read(t, ctx, 0, 1000)
		// What went wrong before says more than the end of the context.
		wantKind(t, err, ErrThrottled)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v does not tell of the context", err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		f.p.Clear()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Fault: faultproxy.BlackHole()})
		err := f.read(t, ctx, 0, 1000)
		wantKind(t, err, ErrTimeout)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not tell of the deadline", err)
		}
	})
}

// Stored bytes come as they are stored.
func TestReadDoesNotDecompress(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(bytes.Repeat([]byte("text "), 1000))
	w.Close()
	_, err := env.Minio().PutObject(context.Background(), b, "k.gz", bytes.NewReader(z.Bytes()), int64(z.Len()), minio.PutObjectOptions{ContentEncoding: "gzip"})
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, readAll(t, open(t, env, env.Endpoint, nil), b, "k.gz"), z.Bytes())
}

// The server dies and comes back during a read.
func TestReadSurvivesRestart(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, 1<<20, nil)
	restarted := make(chan struct{})
	f.p.Add(faultproxy.Rule{Method: "GET", Key: "/k", Times: 1, Fault: func(x *faultproxy.Exchange) {
		defer close(restarted)
		f.env.Kill()
		x.Reset()
		f.env.Restart()
	}})
	if err := f.read(t, context.Background(), 0, 1<<20); err != nil {
		t.Error(err)
	}
	<-restarted
}
