package store

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/internal/testenv"
)

func TestPutSizes(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	var total int64
	for _, n := range []int{0, 1, 4096, 65535, 1 << 20, 5<<20 + 3} {
		data := noise(n, uint64(n))
		i := mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: plain(data)})
		if i.Size != int64(n) || i.ETag == "" {
			t.Errorf("%d bytes: %+v", n, i)
		}
		wantSame(t, env.Get(b, "k"), data)
		total += int64(n)
	}
	if st := s.Stats(); st.Write.HTTP != (Traffic{Transfers: 6, Bytes: total}) {
		t.Errorf("stats %+v, want %d bytes", st.Write, total)
	}
}

func TestPutConditions(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	put := func(data string, c Cond) (Info, error) {
		return s.Put(ctx, PutRequest{Bucket: b, Key: "k", Src: plain([]byte(data)), Cond: c})
	}
	_, err := put("0", Cond{IfMatch: "0123456789abcdef0123456789abcdef"})
	wantKind(t, err, ErrPrecondition)
	one, err := put("1", Cond{IfAbsent: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = put("2", Cond{IfAbsent: true})
	wantKind(t, err, ErrExists)
	two, err := put("2", Cond{IfMatch: one.ETag})
	if err != nil {
		t.Fatal(err)
	}
	_, err = put("3", Cond{IfMatch: one.ETag})
	wantKind(t, err, ErrPrecondition)
	if got := env.Get(b, "k"); string(got) != "2" || two.ETag == one.ETag {
		t.Errorf("stored %q", got)
	}
}

// One of many creators wins, and exactly one believes so.
func TestPutIfAbsentRace(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = s.Put(context.Background(), PutRequest{Bucket: b, Key: "k", Src: plain(noise(1000, uint64(i))), Cond: Cond{IfAbsent: true}})
		})
	}
	wg.Wait()
	winners := 0
	for i, err := range errs {
		if err == nil {
			winners++
			wantSame(t, env.Get(b, "k"), noise(1000, uint64(i)))
		} else {
			wantKind(t, err, ErrExists)
		}
	}
	if winners != 1 {
		t.Errorf("%d winners", winners)
	}
}

// A put whose answer is lost is looked for before anything else happens.
func TestPutWithLostAnswer(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	meta := map[string]string{"mtime": "5"}
	old := mustPut(t, s, PutRequest{Bucket: b, Key: "old", Src: plain([]byte("old")), Meta: meta})
	other := func(x *faultproxy.Exchange) {
		env.Put(b, strings.TrimPrefix(x.R.URL.Path, "/"+b+"/"), []byte("somebody else's"))
		x.Reset()
	}
	for name, c := range map[string]struct {
		key   string
		cond  Cond
		fault faultproxy.Fault
		puts  int
		err   error
	}{
		"stored":                           {"k1", Cond{}, faultproxy.ResetAfter(), 1, nil},
		"stored, status 500":               {"k2", Cond{}, faultproxy.StatusAfter(500, "InternalError"), 1, nil},
		"stored, 502 page":                 {"k2b", Cond{}, func(x *faultproxy.Exchange) { faultproxy.StatusAfter(502, "")(x) }, 1, nil},
		"stored, if absent":                {"k3", Cond{IfAbsent: true}, faultproxy.ResetAfter(), 1, nil},
		"stored, if match":                 {"old", Cond{IfMatch: old.ETag}, faultproxy.ResetAfter(), 1, nil},
		"not stored":                       {"k4", Cond{}, faultproxy.ResetBefore(), 2, nil},
		"not stored, if absent":            {"k5", Cond{IfAbsent: true}, faultproxy.ResetBefore(), 2, nil},
		"not stored, status 500":           {"k6", Cond{IfAbsent: true}, faultproxy.Status(500, "InternalError"), 2, nil},
		"busy":                             {"k7", Cond{IfAbsent: true}, faultproxy.Status(503, "SlowDown"), 2, nil},
		"somebody else came in":            {"k8", Cond{}, other, 2, nil},
		"somebody else came in, if absent": {"k9", Cond{IfAbsent: true}, other, 1, ErrExists},
	} {
		t.Run(name, func(t *testing.T) {
			p.Clear()
			before := len(p.Requests("PUT"))
			p.Add(faultproxy.Rule{Method: "PUT", Key: "/" + c.key, Times: 1, Fault: c.fault})
			data := noise(100<<10, 9)
			i, err := s.Put(context.Background(), PutRequest{Bucket: b, Key: c.key, Src: plain(data), Meta: meta, Cond: c.cond})
			if n := len(p.Requests("PUT")) - before; n != c.puts {
				t.Errorf("%d PUTs, want %d", n, c.puts)
			}
			if c.err != nil {
				wantKind(t, err, c.err)
				if got := env.Get(b, c.key); string(got) != "somebody else's" {
					t.Errorf("stored %q", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h, err := s.Head(context.Background(), b, c.key)
			if err != nil || h.ETag != i.ETag || !maps.Equal(h.Meta, meta) {
				t.Errorf("head %+v, %v; put returned %+v", h, err, i)
			}
			wantSame(t, env.Get(b, c.key), data)
		})
	}
}

// Equal bytes with other metadata are not what was to be stored.
func TestPutWithLostAnswerComparesMetadata(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	data := noise(1000, 1)
	mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: plain(data), Meta: map[string]string{"mtime": "1"}})
	p.Add(faultproxy.Rule{Method: "PUT", Times: 1, Fault: faultproxy.ResetBefore()})
	mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: plain(data), Meta: map[string]string{"mtime": "2"}})
	h, err := s.Head(context.Background(), b, "k")
	if err != nil || h.Meta["mtime"] != "2" {
		t.Errorf("stored %+v, %v", h.Meta, err)
	}
}

// The ETag of an encrypted object is not its MD5; then the bytes decide.
func TestPutWithLostAnswerAndForeignETag(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	const etag = "ffffffffffffffffffffffffffffffff"
	p.Add(faultproxy.Rule{Method: "PUT", Times: 1, Fault: faultproxy.ResetAfter()})
	p.Add(faultproxy.Rule{Method: "HEAD", Fault: faultproxy.Header("Etag", `"`+etag+`"`)})
	data := noise(3<<20, 1)
	p.Add(faultproxy.Rule{Method: "GET", Fault: func(x *faultproxy.Exchange) {
		// The server knows only its own ETag.
		r, err := env.Minio().GetObject(x.R.Context(), b, "k", rangeOf(x.R.Header.Get("Range")))
		if err != nil {
			x.Reset()
			return
		}
		defer r.Close()
		reply(x, r, etag, int64(len(data)))
	}})
	i := mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: plain(data), Cond: Cond{IfAbsent: true}})
	if i.ETag != etag || len(p.Requests("PUT")) != 1 {
		t.Errorf("%+v after %d PUTs", i, len(p.Requests("PUT")))
	}
}

func TestPutRefused(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	for code, c := range map[string]struct {
		status int
		kind   error
	}{
		"AccessDenied":          {403, ErrDenied},
		"SignatureDoesNotMatch": {403, ErrBadCredentials},
		"EntityTooLarge":        {400, ErrTooLarge},
		"KeyTooLongError":       {400, ErrInvalidName},
		"QuotaExceeded":         {403, ErrNoSpace},
		"NotImplemented":        {501, ErrUnsupported},
		"ObjectLocked":          {403, ErrLocked},
		"ObjectParentIsFile":    {409, ErrNotDirectory},
		"MadeUp":                {418, ErrRefused},
	} {
		t.Run(code, func(t *testing.T) {
			p.Clear()
			before := len(p.Requests("PUT"))
			p.Add(faultproxy.Rule{Method: "PUT", Fault: faultproxy.Status(c.status, code)})
			_, err := s.Put(context.Background(), PutRequest{Bucket: b, Key: "k", Src: plain([]byte("x"))})
			wantKind(t, err, c.kind)
			var e *Error
			if errors.As(err, &e); e.Code != code || e.Status != c.status || e.Key != "k" || e.Op != "Put" {
				t.Errorf("%+v", e)
			}
			if n := len(p.Requests("PUT")) - before; n != 1 {
				t.Errorf("%d tries of what cannot succeed", n)
			}
		})
	}
	p.Clear()
	_, err := s.Put(context.Background(), PutRequest{Bucket: "no-such-bucket", Key: "k"})
	wantKind(t, err, ErrNoBucket)
	_, err = s.Put(context.Background(), PutRequest{Bucket: b, Key: strings.Repeat("x", MaxKeyLen+1)})
	wantKind(t, err, ErrInvalidName)
}
