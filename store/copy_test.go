package store

import (
	"bytes"
	"context"
	"maps"
	"testing"

	"github.com/minio/minio-go/v7"

	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/internal/testenv"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b, b2 := env.NewBucket(""), env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	data := noise(100<<10, 1)
	meta := map[string]string{"mtime": "1", "mode": "33188"}
	src := mustPut(t, s, PutRequest{Bucket: b, Key: "dir/a+b %2F ü", Src: plain(data), Meta: meta, ContentType: "text/a"})
	for name, c := range map[string]struct {
		r    CopyRequest
		meta map[string]string
		typ  string
	}{
		"same bucket":     {CopyRequest{DstKey: "c1"}, meta, "text/a"},
		"odd key":         {CopyRequest{DstKey: "x+y %20 é?"}, meta, "text/a"},
		"other bucket":    {CopyRequest{DstBucket: b2, DstKey: "c2"}, meta, "text/a"},
		"version":         {CopyRequest{DstKey: "c3", SrcETag: src.ETag}, meta, "text/a"},
		"other metadata":  {CopyRequest{DstKey: "c4", Meta: map[string]string{"mtime": "2"}}, map[string]string{"mtime": "2"}, "text/a"},
		"no metadata":     {CopyRequest{DstKey: "c5", Meta: map[string]string{}}, map[string]string{}, "text/a"},
		"other type":      {CopyRequest{DstKey: "c6", Meta: map[string]string{}, ContentType: "text/b"}, map[string]string{}, "text/b"},
		"if absent":       {CopyRequest{DstKey: "c7", Cond: Cond{IfAbsent: true}}, meta, "text/a"},
		"its own version": {CopyRequest{DstKey: src.Key, Meta: map[string]string{"mtime": "9"}, SrcETag: src.ETag, Cond: Cond{IfMatch: src.ETag}}, map[string]string{"mtime": "9"}, "text/a"},
	} {
		t.Run(name, func(t *testing.T) {
			// The last case changes the source.
			mustPut(t, s, PutRequest{Bucket: b, Key: src.Key, Src: plain(data), Meta: meta, ContentType: "text/a"})
			c.r.Bucket, c.r.Key = b, src.Key
			i, err := s.Copy(ctx, c.r)
			if err != nil {
				t.Fatal(err)
			}
			h, err := s.Head(ctx, i.Bucket, i.Key)
			if err != nil || h.ETag != i.ETag || h.Size != i.Size || !maps.Equal(h.Meta, c.meta) || !maps.Equal(i.Meta, c.meta) || h.ContentType != c.typ {
				t.Errorf("copied %+v, head %+v, %v", i, h, err)
			}
			wantSame(t, readAll(t, s, i.Bucket, i.Key), data)
		})
	}
}

// Changing metadata loses nothing else.
func TestCopyKeepsHeaders(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	data := noise(11<<20, 1)
	for name, limit := range map[string]int64{"at once": 1 << 30, "by parts": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			_, err := env.Minio().PutObject(ctx, b, "k", bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{
				ContentType: "text/a", ContentEncoding: "gzip", CacheControl: "no-store", ContentLanguage: "de", ContentDisposition: "inline",
				DisableContentSha256: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			s.maxSingleCopy, s.copyPartSize = limit, 6<<20
			if _, err := s.Copy(ctx, CopyRequest{Bucket: b, Key: "k", DstKey: "k", Meta: map[string]string{"mode": "5"}}); err != nil {
				t.Fatal(err)
			}
			o, err := env.Minio().StatObject(ctx, b, "k", minio.StatObjectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := []string{o.ContentType, o.ContentEncoding, o.Metadata.Get("Cache-Control"), o.Metadata.Get("Content-Language"),
				o.Metadata.Get("Content-Disposition"), o.Metadata.Get("X-Amz-Meta-Mode")}
			for i, want := range []string{"text/a", "gzip", "no-store", "de", "inline", "5"} {
				if got[i] != want {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
			wantSame(t, env.Get(b, "k"), data)
		})
	}
}

func TestCopyConditions(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	src := mustPut(t, s, PutRequest{Bucket: b, Key: "src", Src: plain([]byte("src"))})
	dst := mustPut(t, s, PutRequest{Bucket: b, Key: "dst", Src: plain([]byte("dst"))})
	for name, c := range map[string]struct {
		r   CopyRequest
		err error
	}{
		"no source":      {CopyRequest{Key: "nothing", DstKey: "dst"}, ErrNotFound},
		"other version":  {CopyRequest{Key: "src", DstKey: "dst", SrcETag: dst.ETag}, ErrChanged},
		"dst exists":     {CopyRequest{Key: "src", DstKey: "dst", Cond: Cond{IfAbsent: true}}, ErrExists},
		"dst changed":    {CopyRequest{Key: "src", DstKey: "dst", Cond: Cond{IfMatch: src.ETag}}, ErrPrecondition},
		"dst is gone":    {CopyRequest{Key: "src", DstKey: "nothing", Cond: Cond{IfMatch: src.ETag}}, ErrPrecondition},
		"no bucket":      {CopyRequest{Key: "src", DstBucket: "no-such-bucket", DstKey: "dst"}, ErrNoBucket},
		"no name":        {CopyRequest{Key: "src", DstKey: ""}, ErrInvalidName},
		"no source name": {CopyRequest{Key: "", DstKey: "dst"}, ErrInvalidName},
	} {
		t.Run(name, func(t *testing.T) {
			c.r.Bucket = b
			_, err := s.Copy(ctx, c.r)
			wantKind(t, err, c.err)
			if got := env.Get(b, "dst"); string(got) != "dst" {
				t.Errorf("stored %q in spite of it", got)
			}
		})
	}
}

// The source changes after Copy looked at it.
func TestCopyOfChangingSource(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	ctx := context.Background()
	for name, limit := range map[string]int64{"at once": 1 << 30, "by parts": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			p.Clear()
			mustPut(t, s, PutRequest{Bucket: b, Key: "src", Src: plain(noise(11<<20, 1))})
			s.maxSingleCopy, s.copyPartSize = limit, 6<<20
			p.Add(faultproxy.Rule{Method: "PUT", Match: isCopy, Times: 1, Fault: func(x *faultproxy.Exchange) {
				env.Put(b, "src", noise(11<<20, 2))
				x.Reply(x.Forward())
			}})
			_, err := s.Copy(ctx, CopyRequest{Bucket: b, Key: "src", DstKey: "dst"})
			wantKind(t, err, ErrChanged)
			_, err = s.Head(ctx, b, "dst")
			wantKind(t, err, ErrNotFound)
			if list, err := s.Uploads(ctx, b, ""); err != nil || len(list) != 0 {
				t.Errorf("left %+v, %v", list, err)
			}
		})
	}
}

func TestCopyWithLostAnswer(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	ctx := context.Background()
	src := mustPut(t, s, PutRequest{Bucket: b, Key: "src", Src: plain([]byte("src")), Meta: map[string]string{"mode": "1"}})
	for name, c := range map[string]struct {
		fault  faultproxy.Fault
		copies int
	}{
		"done":             {faultproxy.ResetAfter(), 1},
		"not done":         {faultproxy.ResetBefore(), 2},
		"200 with error":   {faultproxy.LateError("InternalError"), 2},
		"200 with nothing": {faultproxy.Status(200, ""), 2},
		"busy":             {faultproxy.Status(503, "SlowDown"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			p.Clear()
			rule := p.Add(faultproxy.Rule{Method: "PUT", Match: isCopy, Times: 1, Fault: c.fault})
			before := len(p.Requests("PUT"))
			i, err := s.Copy(ctx, CopyRequest{Bucket: b, Key: "src", DstKey: name, SrcETag: src.ETag, Cond: Cond{IfAbsent: true}})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(p.Requests("PUT")) - before; n != c.copies || p.Hits(rule) != 1 {
				t.Errorf("%d requests, want %d", n, c.copies)
			}
			if i.ETag != src.ETag || string(env.Get(b, name)) != "src" {
				t.Errorf("copied %+v", i)
			}
		})
	}
	t.Run("200 with a final error", func(t *testing.T) {
		p.Clear()
		p.Add(faultproxy.Rule{Method: "PUT", Match: isCopy, Fault: faultproxy.LateError("AccessDenied")})
		_, err := s.Copy(ctx, CopyRequest{Bucket: b, Key: "src", DstKey: "denied"})
		wantKind(t, err, ErrDenied)
	})
}
