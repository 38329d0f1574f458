package store

import (
	"bytes"
	"context"
	"maps"
	"sync"
	"testing"

	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/internal/testenv"
)

// upload starts an upload of three parts and returns it with what it will make.
func upload(t *testing.T, s *Store, bucket, key string) (*Upload, []byte) {
	t.Helper()
	u, err := s.Begin(context.Background(), bucket, key, map[string]string{"mtime": "7"}, "text/x-parts")
	if err != nil {
		t.Fatal(err)
	}
	parts := [][]byte{noise(MinPartSize, 1), noise(MinPartSize+4097, 2), noise(1000, 3)}
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() {
			if err := u.Part(context.Background(), i+1, plain(p)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return u, bytes.Join(parts, nil)
}

func TestUpload(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	u, data := upload(t, s, b, "k")
	_, err := s.Head(ctx, b, "k")
	wantKind(t, err, ErrNotFound)
	if list, err := s.Uploads(ctx, b, "k"); err != nil || len(list) != 1 || list[0].ID != u.ID() || list[0].Key != "k" || list[0].Started.IsZero() {
		t.Errorf("uploads %+v, %v", list, err)
	}
	// A part may be sent again.
	copy(data, "new beginning")
	if err := u.Part(ctx, 1, plain(data[:MinPartSize])); err != nil {
		t.Fatal(err)
	}
	i, err := u.Complete(ctx, Cond{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Head(ctx, b, "k")
	if err != nil || h.ETag != i.ETag || h.Size != i.Size || h.Size != int64(len(data)) ||
		!maps.Equal(h.Meta, map[string]string{"mtime": "7"}) || h.ContentType != "text/x-parts" {
		t.Errorf("completed %+v, head %+v, %v", i, h, err)
	}
	wantSame(t, readAll(t, s, b, "k"), data)
	if err := u.Abort(ctx); err != nil {
		t.Errorf("abort after complete: %v", err)
	}
	wantKind(t, u.Part(ctx, 4, plain([]byte("late"))), ErrNoUpload)
}

func TestUploadAbort(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	u, _ := upload(t, s, b, "k")
	if err := u.Abort(ctx); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Uploads(ctx, b, ""); err != nil || len(list) != 0 {
		t.Errorf("left %+v, %v", list, err)
	}
	_, err := u.Complete(ctx, Cond{})
	wantKind(t, err, ErrNoUpload)
	_, err = s.Head(ctx, b, "k")
	wantKind(t, err, ErrNotFound)
	for _, n := range []int{0, -1, MaxParts + 1} {
		wantKind(t, u.Part(ctx, n, plain([]byte("x"))), ErrTooLarge)
	}
}

func TestUploadConditions(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	old := mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: plain([]byte("old"))})
	u, data := upload(t, s, b, "k")
	_, err := u.Complete(ctx, Cond{IfAbsent: true})
	wantKind(t, err, ErrExists)
	if got := env.Get(b, "k"); string(got) != "old" {
		t.Fatalf("stored %d bytes in spite of it", len(got))
	}
	if _, err := u.Complete(ctx, Cond{IfMatch: old.ETag}); err != nil {
		t.Fatal(err)
	}
	wantSame(t, env.Get(b, "k"), data)
	u, _ = upload(t, s, b, "k")
	_, err = u.Complete(ctx, Cond{IfMatch: old.ETag})
	wantKind(t, err, ErrPrecondition)
}

func TestCompleteWithLostAnswer(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	for name, c := range map[string]struct {
		fault faultproxy.Fault
		posts int
	}{
		"done":                 {faultproxy.ResetAfter(), 1},
		"done, 500":            {faultproxy.StatusAfter(500, "InternalError"), 1},
		"not done":             {faultproxy.ResetBefore(), 2},
		"200 with error":       {faultproxy.LateError("InternalError"), 2},
		"200 with slow down":   {faultproxy.LateError("SlowDown"), 2},
		"200 with nothing":     {faultproxy.Status(200, ""), 2},
		"200 with another XML": {faultproxy.HTML(200), 2},
	} {
		t.Run(name, func(t *testing.T) {
			p.Clear()
			u, data := upload(t, s, b, name)
			before := len(p.Requests("POST"))
			p.Add(faultproxy.Rule{Method: "POST", Times: 1, Fault: c.fault})
			i, err := u.Complete(context.Background(), Cond{IfAbsent: true})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(p.Requests("POST")) - before; n != c.posts {
				t.Errorf("%d requests, want %d", n, c.posts)
			}
			if h, err := s.Head(context.Background(), b, name); err != nil || h.ETag != i.ETag {
				t.Errorf("completed %+v, head %+v, %v", i, h, err)
			}
			wantSame(t, env.Get(b, name), data)
		})
	}
}

// An error in the body of a 200 is an error.
func TestCompleteAnsweredLate(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	u, _ := upload(t, s, b, "k")
	p.Add(faultproxy.Rule{Method: "POST", Fault: faultproxy.LateError("AccessDenied")})
	_, err := u.Complete(context.Background(), Cond{})
	wantKind(t, err, ErrDenied)
	_, err = s.Head(context.Background(), b, "k")
	wantKind(t, err, ErrNotFound)
}

func TestPartIsRepeated(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	p.Add(faultproxy.Rule{Method: "PUT", Match: withQuery("partNumber", "1"), Times: 1, Fault: faultproxy.ResetAfter()})
	p.Add(faultproxy.Rule{Method: "PUT", Match: withQuery("partNumber", "2"), Times: 2, Fault: faultproxy.Status(503, "SlowDown")})
	u, data := upload(t, s, b, "k")
	if _, err := u.Complete(context.Background(), Cond{}); err != nil {
		t.Fatal(err)
	}
	wantSame(t, env.Get(b, "k"), data)
	if st := s.Stats(); st.Retries != 3 || st.Write.HTTP.Transfers != 3 {
		t.Errorf("stats %+v", st)
	}
}
