package gateway

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3response"
)

// walks counts the listings for which versitygw walks.
type walks struct {
	backend.Backend
	n int
}

func (w *walks) ListObjectsV2(ctx context.Context, in *s3.ListObjectsV2Input) (s3response.ListObjectsV2Result, error) {
	if value(in.MaxKeys) > 0 {
		w.n++
	}
	return w.Backend.ListObjectsV2(ctx, in)
}

// listingTree has everything that a prefix can lead into.
func listingTree(t *testing.T) *Gateway {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"b/d/plain-empty", "b/d/plain/below", "b/d/x.y", "b/other/empty", "c"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"b/d/link": "plain", "b/d/link-empty": "plain-empty", "b/outside": "other", "b/d/dangling": "nowhere", "b/d/loop": "loop", "b/d/file-link": "file",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	g, err := open(t, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"d/file", "d/plain/below/f", "d/plain.txt", "d/marker/", "d/marker-full/", "d/marker-full/f", "top", "top.d/"} {
		put(t, g, "b", key, "")
	}
	return g
}

// A quick answer differs from the walk's in nothing but the time it takes.
func TestQuickListingsAreThoseOfTheWalk(t *testing.T) {
	g := listingTree(t)
	quick := g.be.(*consistentReads).Backend.(*posixBackend).Backend.(quickListings)
	prefixes := []string{"", "/", "//", "d", "d/", "d//", "d/./", "d/../", "../", "../c/", ".", "./d/", "nothing/", "nothing/at/all/", "no", "top/", "top.d/", "top.d/x", "other/empty/", "outside/empty/", "outside/", ".sgwtmp/", "d/.sgwtmp/"}
	for _, name := range []string{"file", "plain-empty", "plain", "plain/below", "x.y", "link", "link-empty", "link/below", "dangling", "loop", "file-link", "marker", "marker-full", "nothing", "plain/nothing"} {
		prefixes = append(prefixes, "d/"+name, "d/"+name+"/", "d/"+name+"/f", "d/"+name+"/no")
	}
	for _, bucket := range []string{"b", "c", "missing"} {
		for _, prefix := range prefixes {
			for _, delimiter := range []string{"", "/", "a"} {
				for _, marker := range []string{"", "d/m", "d/marker/", "e"} {
					for _, maxKeys := range []int32{0, 1, 1000} {
						in2 := s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix, Delimiter: &delimiter, ContinuationToken: &marker, StartAfter: new(string), MaxKeys: &maxKeys}
						for _, owner := range []bool{false, true} {
							in2.FetchOwner = &owner
							if got, want := listV2(t, quick, in2), listV2(t, quick.Backend, in2); got != want {
								t.Errorf("V2 of %s, prefix %q, delimiter %q, after %q, at most %d:\n%s\nwant %s", bucket, prefix, delimiter, marker, maxKeys, got, want)
							}
						}
						in1 := s3.ListObjectsInput{Bucket: &bucket, Prefix: &prefix, Delimiter: &delimiter, Marker: &marker, MaxKeys: &maxKeys}
						if got, want := listV1(t, quick, in1), listV1(t, quick.Backend, in1); got != want {
							t.Errorf("V1 of %s, prefix %q, delimiter %q, after %q, at most %d:\n%s\nwant %s", bucket, prefix, delimiter, marker, maxKeys, got, want)
						}
					}
				}
			}
		}
	}
}

// listV2 is a listing as text. The walk sometimes says that there is more where
// there is nothing; a quick answer never does.
func listV2(t *testing.T, be backend.Backend, in s3.ListObjectsV2Input) string {
	t.Helper()
	out, err := be.ListObjectsV2(t.Context(), &in)
	if err == nil && *out.IsTruncated {
		in.ContinuationToken = out.NextContinuationToken
		if rest, err := be.ListObjectsV2(t.Context(), &in); err == nil && *rest.KeyCount == 0 {
			out.IsTruncated, out.NextContinuationToken = new(bool), nil
		}
	}
	return text(out, err)
}

func listV1(t *testing.T, be backend.Backend, in s3.ListObjectsInput) string {
	t.Helper()
	out, err := be.ListObjects(t.Context(), &in)
	if err == nil && *out.IsTruncated {
		in.Marker = out.NextMarker
		if rest, err := be.ListObjects(t.Context(), &in); err == nil && len(rest.Contents)+len(rest.CommonPrefixes) == 0 {
			out.IsTruncated, out.NextMarker = new(bool), nil
		}
	}
	return text(out, err)
}

func text(out any, err error) string {
	b, jerr := json.Marshal(out)
	if err != nil {
		return readable(err).Error()
	}
	if jerr != nil {
		return jerr.Error()
	}
	return strings.ReplaceAll(string(b), "[]", "null") // the same in XML
}

// What is not there is found out without a walk through what is beside it.
func TestQuickListingsDoNotWalk(t *testing.T) {
	g := listingTree(t)
	quick := g.be.(*consistentReads).Backend.(*posixBackend).Backend.(quickListings)
	counted := &walks{Backend: quick.Backend}
	quick.Backend = counted
	for prefix, want := range map[string]int{
		"d/nothing/": 0, "d/file/": 0, "d/nothing/at/all": 0, "d/plain-empty/": 0, "d/marker/": 0, "d/dangling/": 0,
		"d/": 1, "d/plain/": 1, "d/link/": 1, "d": 1, "": 1,
	} {
		counted.n = 0
		bucket, empty, one := "b", "", int32(1)
		if _, err := quick.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix, Delimiter: &empty, ContinuationToken: &empty, StartAfter: &empty, MaxKeys: &one}); err != nil {
			t.Fatal(err)
		}
		if counted.n != want {
			t.Errorf("prefix %q: %d walks, want %d", prefix, counted.n, want)
		}
	}
}
