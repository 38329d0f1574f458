package fs

import (
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
	f := w.front(func(http.ResponseWriter, *http.Request) bool { return false })
	so := w.storeOptions()
	so.Endpoint = f.URL
	m := w.mountStore(so, func(o *Options) { o.Prefix = "p/q" })
	wantFile(t, m.path("d/f"), "data")
	names(t, m.dir)
	write(t, m.path("new"), "x")
	for _, err := range []error{
		os.Rename(m.path("new"), m.path("d/new")), os.Mkdir(m.path("e"), 0o755),
		os.Remove(m.path("d/new")), os.RemoveAll(m.path("d")), os.Chmod(m.dir, 0o700),
	} {
		if err != nil {
			t.Error(err)
		}
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
