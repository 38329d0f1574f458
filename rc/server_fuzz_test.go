package rc_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/token"
)

// FuzzServerRoutes sends requests with arbitrary headers: no answer may be one
// of an internal error, and nothing may be left over.
func FuzzServerRoutes(f *testing.F) {
	lines := func(h http.Header) string {
		var b strings.Builder
		for name := range h {
			b.WriteString(name + ": " + h.Get(name) + "\n")
		}
		return b.String()
	}
	tok, err := token.Parse("014523010000000000000000000000ffffc000020a0000000000000000000000000000000000000000010000")
	if err != nil {
		f.Fatal(err)
	}
	target := token.Target{Bucket: "b", Key: "k"}
	session := strings.Repeat("0", 32)
	prepare := token.PrepareRequest{Token: tok, PSN: 1, Cookie: 1, Op: rc.OpGet, Target: target, Size: 100}
	f.Add(uint8(0), lines(prepare.Header()))
	prepare.Op, prepare.Meta = rc.OpPut, map[string]string{"a": "b"}
	f.Add(uint8(0), lines(prepare.Header()))
	prepare.Meta, prepare.Keep = nil, true
	f.Add(uint8(0), lines(prepare.Header()))
	f.Add(uint8(1), lines(token.ReadyRequest{Session: session, Cookie: 1, QPN: 1, MRAddr: 1, MRRKey: 1}.Header()))
	f.Add(uint8(2), lines(token.CancelRequest{Session: session, Cookie: 1}.Header()))
	f.Add(uint8(3), lines(token.NextRequest{Session: session, Seq: 1, Cookie: 1, Op: rc.OpPut, Target: target, Size: 1}.Header()))

	e := startServer(f, serverConfig{edit: func(o *rc.ServerOptions) {
		o.PrepareTimeout, o.ExecTimeout, o.MaxTransfer = 5*time.Millisecond, time.Millisecond, 1<<20
	}})
	e.objects.put("/b/k", make([]byte, 100))
	routes := []func(rc.Request) rc.Response{
		func(r rc.Request) rc.Response { return e.srv.Prepare(context.Background(), r) },
		func(r rc.Request) rc.Response { return e.srv.Ready(context.Background(), r) },
		func(r rc.Request) rc.Response { return e.srv.Cancel(context.Background(), r) },
		func(r rc.Request) rc.Response { return e.srv.Next(context.Background(), r) },
	}
	f.Fuzz(func(t *testing.T, route uint8, headers string) {
		h := make(http.Header)
		for line := range strings.Lines(headers) {
			if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); ok {
				h.Add(name, value)
			}
		}
		resp := routes[int(route)%len(routes)](rc.Request{
			Header:       h,
			Authenticate: func() (rc.Principal, error) { return rc.Principal{ID: "fuzz"}, nil },
		})
		switch {
		case resp.Status == http.StatusInternalServerError || resp.Status < 200:
			t.Errorf("status %d: %s", resp.Status, resp.Body)
		case resp.Status == http.StatusOK && len(resp.Body) > 0, resp.Status != http.StatusOK && len(resp.Body) == 0:
			t.Errorf("status %d with %d bytes", resp.Status, len(resp.Body))
		}
		if id := resp.Header.Get(token.HeaderSession); id != "" {
			cancel := rc.Request{
				Header:       token.CancelRequest{Session: id, Cookie: 1}.Header(),
				Authenticate: func() (rc.Principal, error) { return rc.Principal{ID: "fuzz"}, nil },
			}
			if resp := e.srv.Cancel(context.Background(), cancel); resp.Status != http.StatusOK {
				t.Errorf("CANCEL: %d", resp.Status)
			}
			if st := e.srv.Stats(); st.Sessions != 0 || st.StagingInUse != 0 {
				t.Errorf("left over: %+v", st)
			}
		}
	})
}
