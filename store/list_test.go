package store

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"s3rdmafs/internal/testenv"
)

// oddKeys must come back byte for byte.
var oddKeys = []string{
	"plain", "with space", "a+b", "a%20b", "a%2Fb", "100%", "ümlaut", "日本語", "quote\"'", "<&>", "semi;colon", "q?a=b&c#d",
	"tab\tinside", "back\\slash", "dir/one", "dir/two", "dir+x/one", "dir%2B/one", "e\u0301 and \u00e9", "star*[1]", "~.-_",
}

func listAll(t testing.TB, s *Store, r ListRequest) []Info {
	t.Helper()
	var out []Info
	for {
		p, err := s.List(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		if r.Max > 0 && len(p.Infos) > r.Max {
			t.Fatalf("%d entries on a page of %d", len(p.Infos), r.Max)
		}
		out = append(out, p.Infos...)
		if r.Token = p.Next; r.Token == "" {
			return out
		}
	}
}

func keysOf(infos []Info) (keys []string) {
	for _, i := range infos {
		keys = append(keys, i.Key)
	}
	return keys
}

func TestListReturnsKeysByteForByte(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	for i, k := range oddKeys {
		data := []byte(fmt.Sprint(i))
		mustPut(t, s, PutRequest{Bucket: b, Key: k, Src: plain(data)})
		wantSame(t, readAll(t, s, b, k), data)
	}
	want := slices.Sorted(slices.Values(oddKeys))
	for _, max := range []int{0, 1, 4} {
		got := listAll(t, s, ListRequest{Bucket: b, Recursive: true, Max: max})
		if !slices.Equal(keysOf(got), want) {
			t.Errorf("pages of %d: got %q, want %q", max, keysOf(got), want)
		}
	}
	for _, i := range listAll(t, s, ListRequest{Bucket: b, Recursive: true}) {
		h, err := s.Head(context.Background(), b, i.Key)
		if err != nil || h.ETag != i.ETag || h.Size != i.Size || !h.ModTime.Equal(i.ModTime) {
			t.Errorf("%q: head %+v (%v), listed %+v", i.Key, h, err, i)
		}
	}
}

func TestListRollsUpPrefixes(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	b := env.NewBucket("")
	s := open(t, env, env.Endpoint, nil)
	for _, k := range []string{"a", "d/1", "d/2", "d/e/3", "d+/1", "z"} {
		mustPut(t, s, PutRequest{Bucket: b, Key: k})
	}
	for _, c := range []struct {
		prefix string
		want   []string
	}{
		{"", []string{"a", "d+/", "d/", "z"}},
		{"d/", []string{"d/1", "d/2", "d/e/"}},
		{"d+/", []string{"d+/1"}},
		{"nothing/", nil},
	} {
		for _, max := range []int{0, 1} {
			got := listAll(t, s, ListRequest{Bucket: b, Prefix: c.prefix, Max: max})
			if !slices.Equal(keysOf(got), c.want) {
				t.Errorf("prefix %q, pages of %d: got %q, want %q", c.prefix, max, keysOf(got), c.want)
			}
			for _, i := range got {
				if i.IsPrefix != (i.Key[len(i.Key)-1] == '/') {
					t.Errorf("%q: IsPrefix %v", i.Key, i.IsPrefix)
				}
			}
		}
	}
	got := listAll(t, s, ListRequest{Bucket: b, Recursive: true, StartAfter: "d/1"})
	if want := []string{"d/2", "d/e/3", "z"}; !slices.Equal(keysOf(got), want) {
		t.Errorf("after d/1: got %q, want %q", keysOf(got), want)
	}
}

func TestListErrors(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	s := open(t, env, env.Endpoint, nil)
	_, err := s.List(context.Background(), ListRequest{Bucket: "not-there"})
	wantKind(t, err, ErrNoBucket)
	_, err = s.List(context.Background(), ListRequest{Bucket: "No_Bucket"})
	wantKind(t, err, ErrInvalidName)
}

func TestListObeysContext(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	s := open(t, env, env.Endpoint, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.List(ctx, ListRequest{Bucket: env.NewBucket("")})
	wantKind(t, err, context.Canceled)
}
