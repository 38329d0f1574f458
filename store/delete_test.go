package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/internal/testenv"
)

func TestDelete(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	ctx := context.Background()
	for _, k := range oddKeys {
		env.Put(b, k, []byte("x"))
		if err := s.Delete(ctx, b, k); err != nil {
			t.Errorf("%q: %v", k, err)
		}
		_, err := s.Head(ctx, b, k)
		wantKind(t, err, ErrNotFound)
		if err := s.Delete(ctx, b, k); err != nil {
			t.Errorf("%q, again: %v", k, err)
		}
	}
	wantKind(t, s.Delete(ctx, "no-such-bucket", "k"), ErrNoBucket)
	wantKind(t, s.Delete(ctx, b, ""), ErrInvalidName)
}

// What somebody else creates after a deletion without answer stays.
func TestDeleteWithLostAnswer(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	ctx := context.Background()
	for name, c := range map[string]struct {
		fault   faultproxy.Fault
		deletes int
	}{
		"done":     {faultproxy.ResetAfter(), 1},
		"not done": {faultproxy.ResetBefore(), 2},
		"busy":     {faultproxy.Status(503, "SlowDown"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			p.Clear()
			env.Put(b, "k", []byte("x"))
			before := len(p.Requests("DELETE"))
			p.Add(faultproxy.Rule{Method: "DELETE", Times: 1, Fault: c.fault})
			if err := s.Delete(ctx, b, "k"); err != nil {
				t.Fatal(err)
			}
			if n := len(p.Requests("DELETE")) - before; n != c.deletes {
				t.Errorf("%d requests, want %d", n, c.deletes)
			}
			_, err := s.Head(ctx, b, "k")
			wantKind(t, err, ErrNotFound)
		})
	}
}

func TestDeleteMany(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	p := faultproxy.Start(t, env.Endpoint)
	s := open(t, env, p.URL, nil)
	ctx := context.Background()
	keys := append([]string{"not there", "bad\xff"}, oddKeys...)
	for _, k := range oddKeys {
		env.Put(b, k, []byte("x"))
	}
	// More than one request deletes.
	for i := range 1100 {
		k := fmt.Sprintf("many-%04d", i)
		if err := os.WriteFile(filepath.Join(env.Dir, b, k), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	p.Add(faultproxy.Rule{Method: "POST", Times: 1, Fault: faultproxy.Status(503, "SlowDown")})
	failed, err := s.DeleteMany(ctx, b, keys)
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, failed["bad\xff"], ErrInvalidName)
	if len(failed) != 1 {
		t.Errorf("failed: %v", failed)
	}
	if left := listAll(t, s, ListRequest{Bucket: b, Recursive: true}); len(left) != 0 {
		t.Errorf("left: %q", keysOf(left))
	}
	failed, err = s.DeleteMany(ctx, "no-such-bucket", []string{"a", "b"})
	if err == nil {
		wantKind(t, failed["a"], ErrNoBucket)
	}
}
