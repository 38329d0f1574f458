package fs

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// front is a server before the gateway that answers some requests itself. The
// signatures stay valid, because the gateway sees the front's name as host.
type front struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string // method and path with query
}

func (w *world) front(answer func(http.ResponseWriter, *http.Request) bool) *front {
	w.t.Helper()
	u, err := url.Parse(w.env.Endpoint)
	if err != nil {
		w.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = u.Scheme, u.Host
		r.Out.Host = r.In.Host
	}}
	f := &front{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI())
		f.mu.Unlock()
		if !answer(rw, r) {
			proxy.ServeHTTP(rw, r)
		}
	}))
	w.t.Cleanup(f.Close)
	return f
}

// s3Error answers as S3 does.
func s3Error(rw http.ResponseWriter, status int, code string) {
	rw.Header().Set("Content-Type", "application/xml")
	rw.WriteHeader(status)
	rw.Write([]byte("<Error><Code>" + code + "</Code><Message>test</Message></Error>"))
}

// Semantics "Names": a mount of all buckets works where listing them is denied.
func TestListBucketsDenied(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("data"))
	f := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && r.URL.Path == "/" {
			s3Error(rw, http.StatusForbidden, "AccessDenied")
			return true
		}
		return false
	})
	so := w.storeOptions()
	so.Endpoint = f.URL
	m := w.mountStore(so, func(o *Options) { o.Bucket = "" })
	wantFile(t, m.path(w.bucket+"/f"), "data")
	if got := names(t, m.dir); !slices.Equal(got, []string{w.bucket}) {
		t.Errorf("listed %q", got)
	}
}

// Semantics "Names": a mount of a prefix sends no request outside of it.
func TestPrefixRequests(t *testing.T) {
	w := newWorld(t)
	w.put("p/q/d/f", []byte("data"))
	w.put("p/q/r/f", []byte("data"))
	var mu sync.Mutex
	var deletes []string // bodies
	f := w.front(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Has("delete") {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(b))
			mu.Lock()
			deletes = append(deletes, string(b))
			mu.Unlock()
		}
		return false
	})
	so := w.storeOptions()
	so.Endpoint = f.URL
	m := w.mountStore(so, func(o *Options) { o.Prefix = "p/q" })
	wantFile(t, m.path("d/f"), "data")
	names(t, m.dir)
	write(t, m.path("new"), "x")
	for _, err := range []error{
		os.Rename(m.path("new"), m.path("d/new")), os.Mkdir(m.path("e"), 0o755),
		os.Rename(m.path("r"), m.path("s")), os.Remove(m.path("d/new")), os.RemoveAll(m.path("d")), os.Chmod(m.dir, 0o700),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, body := range deletes {
		if n := strings.Count(body, "<Key>"); n == 0 || n != strings.Count(body, "<Key>p/q/") {
			t.Errorf("deletes outside of the prefix: %s", body)
		}
	}
	if len(deletes) == 0 {
		t.Error("nothing was deleted by a list")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		_, uri, _ := strings.Cut(r, " ")
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		inside := strings.HasPrefix(u.Path, "/"+w.bucket+"/p/q/") || strings.HasPrefix(u.Query().Get("prefix"), "p/q/")
		if !inside && !u.Query().Has("location") && !u.Query().Has("delete") {
			t.Errorf("request outside of the prefix: %s", r)
		}
	}
}

// Semantics "Errors and time": 403 is EACCES, also for a lookup, and is not
// remembered.
func TestDenied(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("data"))
	var mu sync.Mutex
	denied := true
	f := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if denied && r.URL.Path == "/"+w.bucket+"/f" {
			s3Error(rw, http.StatusForbidden, "AccessDenied")
			return true
		}
		return false
	})
	so := w.storeOptions()
	so.Endpoint = f.URL
	m := w.mountStore(so)
	_, err := os.Lstat(m.path("f"))
	wantErrno(t, err, syscall.EACCES)
	mu.Lock()
	denied = false
	mu.Unlock()
	wantFile(t, m.path("f"), "data")
}

// Semantics "Names": a and a/b both exist: one entry, the directory; the object
// a is not touched by work under a/, and shows again when the directory is gone.
// The gateway's directory cannot hold both, so the front plays a/b.
func TestObjectBesideDirectory(t *testing.T) {
	w := newWorld(t)
	w.put("a", []byte("object"))
	var mu sync.Mutex
	there := true
	f := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		q := r.URL.Query()
		switch {
		case !there:
			return false
		case r.Method == http.MethodDelete && r.URL.Path == "/"+w.bucket+"/a/b":
			there = false
			rw.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodHead && strings.HasPrefix(r.URL.Path, "/"+w.bucket+"/a/"):
			if r.URL.Path != "/"+w.bucket+"/a/b" {
				rw.WriteHeader(http.StatusNotFound)
				return true
			}
			rw.Header().Set("ETag", `"b"`)
			rw.Header().Set("Content-Length", "1")
			rw.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		case r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/"+w.bucket+"/a/"):
			rw.Header().Set("ETag", `"marker"`)
		case r.Method == http.MethodGet && q.Get("list-type") == "2":
			const object = "<Contents><Key>%s</Key><LastModified>2006-01-02T15:04:05Z</LastModified><ETag>b</ETag><Size>1</Size></Contents>"
			entries := ""
			switch q.Get("prefix") {
			case "":
				entries = fmt.Sprintf(object, "a") + "<CommonPrefixes><Prefix>a%2F</Prefix></CommonPrefixes>"
			case "a/":
				entries = fmt.Sprintf(object, "a%2Fb")
			}
			fmt.Fprintf(rw, "<ListBucketResult><Name>%s</Name><Prefix>%s</Prefix><EncodingType>url</EncodingType>"+
				"<IsTruncated>false</IsTruncated>%s</ListBucketResult>", w.bucket, url.QueryEscape(q.Get("prefix")), entries)
		default:
			return false
		}
		return true
	})
	so := w.storeOptions()
	so.Endpoint = f.URL
	m := w.mountStore(so)
	if st := stat(t, m.path("a")); st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		t.Errorf("a has mode %o", st.Mode)
	}
	if got := names(t, m.dir); !slices.Equal(got, []string{"a"}) {
		t.Errorf("listed %q", got)
	}
	if got := names(t, m.path("a")); !slices.Equal(got, []string{"b"}) {
		t.Errorf("listed %q", got)
	}
	if err := os.Remove(m.path("a/b")); err != nil {
		t.Error(err)
	}
	// The directory in use stays until it is removed itself.
	if err := os.Remove(m.path("a")); err != nil {
		t.Error(err)
	}
	eventually(t, "the object shows", func() bool {
		b, err := os.ReadFile(m.path("a"))
		return err == nil && string(b) == "object"
	})
	w.wantObject("a", "object")
}
