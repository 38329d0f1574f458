package rc_test

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/token"
)

// What stands between client and server can answer in the server's place, and lead
// to another server each time.

// TestAnswerOfAProxy: the server has stored the object, and the answer that
// comes is somebody else's.
func TestAnswerOfAProxy(t *testing.T) {
	answers := []struct {
		status int
		code   string
	}{
		{403, ""}, {404, ""}, {408, ""}, {409, ""}, {413, ""}, {429, ""}, {500, ""}, {502, ""}, {503, ""},
		{504, ""}, {504, "GatewayTimeout"}, {520, ""}, {524, ""},
	}
	refuse := func(w http.ResponseWriter, status int, code string) {
		w.WriteHeader(status)
		if code != "" {
			w.Write([]byte("<Error><Code>" + code + "</Code></Error>"))
		}
	}
	want := func(t *testing.T, what string, err error, stored int) {
		t.Helper()
		if e, ok := err.(*rc.Error); !ok || e.Action != rc.ActionUnknown {
			t.Errorf("%s: %v, want an unknown outcome", what, err)
		}
		if stored != 1 {
			t.Errorf("%s: stored %d times", what, stored)
		}
	}
	for how, tune := range map[string]func(*rc.ClientOptions){"kept": nil, "per transfer": noKeep} {
		t.Run(how, func(t *testing.T) {
			// Our server has its mark on all answers, so that codes do not count.
			for _, a := range append(answers, []struct {
				status int
				code   string
			}{{503, "SlowDown"}, {500, "InternalError"}, {408, "RequestTimeout"}, {404, "NoSuchKey"}}...) {
				d := newDuo(t, duoOptions{})
				var armed atomic.Bool
				d.intercept = func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
					if r.URL.Path != token.PathNext && r.URL.Path != token.PathReady || !armed.Load() {
						return false
					}
					next.ServeHTTP(httptest.NewRecorder(), r)
					refuse(w, a.status, a.code)
					return true
				}
				var stored atomic.Int32
				d.objects.storing = func() error { stored.Add(1); return nil }
				c := d.client(tune)
				d.warm(c)
				armed.Store(true)
				err := d.put(c, "k", 1000)
				want(t, name("%d %s", a.status, a.code), err, int(stored.Load()))
			}
		})
	}
	t.Run("another server's", func(t *testing.T) {
		for _, a := range answers {
			var r *rig
			var armed atomic.Bool
			r = newRig(t, rigOptions{hooks: rctest.Hooks{Answer: func(w http.ResponseWriter, req *http.Request) bool {
				if req.URL.Path != token.PathReady || !armed.CompareAndSwap(true, false) {
					return false
				}
				r.peer.ServeHTTP(httptest.NewRecorder(), req)
				refuse(w, a.status, a.code)
				return true
			}}})
			armed.Store(true)
			_, err := r.put(t.Context(), "k", 1000)
			want(t, name("%d %s", a.status, a.code), err, r.peer.Stored())
		}
	})
}

// A refusal by the server itself still says that nothing was stored.
func TestAnswerOfTheServerItself(t *testing.T) {
	for how, tune := range map[string]func(*rc.ClientOptions){"kept": nil, "per transfer": noKeep} {
		for _, e := range []*rc.S3Error{{Status: 500, Code: "InternalError"}, {Status: 503, Code: "SlowDown"}, {Status: 507, Code: "InsufficientStorage"}} {
			d := newDuo(t, duoOptions{})
			d.objects.storing = func() error { return e }
			c := d.client(tune)
			d.warm(c)
			if err, ok := d.put(c, "k", 1000).(*rc.Error); !ok || err.Action == rc.ActionUnknown {
				t.Errorf("%s, %v: %v", how, e, err)
			}
		}
	}
}

// TestExtensionsVanish: a request that needs an extension comes to a server that
// does not have it, which would do something else.
func TestExtensionsVanish(t *testing.T) {
	for what, run := range map[string]func(*duo, *rc.Client) error{
		"condition": func(d *duo, c *rc.Client) error {
			_, err := c.Put(d.t.Context(), rc.PutRequest{Bucket: "b", Key: "k", Src: d.seg.Slice(0, 1000), IfNoneMatch: "*"})
			return err
		},
		"metadata": func(d *duo, c *rc.Client) error {
			_, err := c.Put(d.t.Context(), rc.PutRequest{Bucket: "b", Key: "k", Src: d.seg.Slice(0, 1000), ContentType: "text/plain"})
			return err
		},
		"part": func(d *duo, c *rc.Client) error {
			_, err := c.Put(d.t.Context(), rc.PutRequest{Bucket: "b", Key: "k", Src: d.seg.Slice(0, 1000), UploadID: "u", PartNumber: 1})
			return err
		},
		"version": func(d *duo, c *rc.Client) error {
			_, err := c.Get(d.t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: d.seg.Slice(0, 1000), IfMatch: etagOf(random(1000))})
			return err
		},
	} {
		for how, tune := range map[string]func(*rc.ClientOptions){"kept": nil, "per transfer": noKeep} {
			t.Run(what+", "+how, func(t *testing.T) {
				d := newDuo(t, duoOptions{})
				var armed atomic.Bool
				d.intercept = func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
					if r.URL.Path != token.PathPrepare || !armed.Load() {
						return false
					}
					rec := httptest.NewRecorder()
					next.ServeHTTP(rec, r)
					maps.Copy(w.Header(), rec.Header())
					w.Header().Del(token.HeaderCapabilities)
					w.WriteHeader(rec.Code)
					return true
				}
				d.objects.put("/b/k", random(1000))
				plant(d.seg.Buf[:1000])
				c := d.client(tune)
				d.warm(c)
				armed.Store(true)
				err := run(d, c)
				wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
				if !errors.Is(err, rc.ErrNotEligible) {
					t.Errorf("error %v", err)
				}
				if n := d.count(token.PathReady) + d.count(token.PathNext); n != 0 {
					t.Errorf("the transfer was asked for %d times", n)
				}
				if n := d.count(token.PathCancel); n != 1 {
					t.Errorf("%d CANCELs", n)
				}
				if o, _ := d.objects.get("/b/k"); o.etag != etagOf(random(1000)) {
					t.Error("the object was overwritten")
				}
				checkCanary(t, d.seg.Buf[:1000])
				armed.Store(false)
				if err := run(d, c); what == "condition" {
					if !errors.Is(err, rc.ErrPrecondition) {
						t.Errorf("once it has the extension again: %v", err)
					}
				} else if err != nil {
					t.Errorf("once it has the extension again: %v", err)
				}
			})
		}
	}
}
