package rc_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

func TestShortenedGet(t *testing.T) {
	for _, chunk := range []int{0, 4096} {
		p := rctest.RGW
		p.StreamChunk = chunk
		r := newRig(t, rigOptions{profile: p})
		r.peer.Set("b/k", random(10_000))
		plant(r.seg.Buf[:20_000])
		got := must[rc.GetResult](t)(r.get(t.Context(), "k", 1000, 19_000))
		if got.N != 9000 {
			t.Fatalf("%d bytes, want 9000", got.N)
		}
		wantBytes(t, "data", r.seg.Buf[:9000], random(10_000)[1000:])
		checkCanary(t, r.seg.Buf[9000:20_000])
	}
}

func TestParallelTransfers(t *testing.T) {
	r := newRig(t, rigOptions{theirs: &shm.Faults{Seed: 1, Piece: 1000}, own: &shm.Faults{Seed: 2, Piece: 1000}})
	const n = 30_000
	var running, most atomic.Int32
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			seg := r.seg.Slice(i*n, n)
			key := name("k%d", i)
			data := random(n + i)[:n]
			copy(seg.Buf, data)
			if _, err := r.client.Put(t.Context(), rc.PutRequest{Bucket: "b", Key: key, Src: seg}); err != nil {
				t.Error(err)
				return
			}
			now := running.Add(1)
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
			clear(seg.Buf)
			if _, err := r.client.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: key, Dst: seg}); err != nil {
				t.Error(err)
				return
			}
			running.Add(-1)
			if !slices.Equal(seg.Buf, data) {
				t.Errorf("%s came back different", key)
			}
		})
	}
	wg.Wait()
	if s := r.client.Stats(); s.Gets != 24 || s.Puts != 24 || s.CookieMismatches != 0 {
		t.Errorf("stats: %+v", s)
	}
}

// TestAnswerChecks has the checks of section 7.5.
func TestAnswerChecks(t *testing.T) {
	set := func(name, value string) func(http.Header) {
		return func(h http.Header) {
			h.Del(name)
			if value != "" {
				h.Set(name, value)
			}
		}
	}
	reply := func(edit func(*token.Token)) func(http.Header) {
		return func(h http.Header) {
			tok, err := token.ParseReply(h.Get(token.HeaderReply))
			if err != nil {
				panic(err)
			}
			edit(&tok)
			h.Set(token.HeaderReply, tok.Reply())
		}
	}
	for _, c := range []struct {
		name   string
		edit   func(http.Header)
		cancel int
	}{
		{"no echo", set(token.HeaderProtocol, ""), 1},
		{"no reply", set(token.HeaderReply, ""), 1},
		{"zero token", reply(func(k *token.Token) { *k = token.Token{} }), 1},
		{"DC transport", reply(func(k *token.Token) { k.Transport = 0 }), 1},
		{"zero GID", reply(func(k *token.Token) { k.GID = [16]byte{} }), 1},
		{"other QP number", set(token.HeaderQPN, "abc"), 1},
		{"short PSN", set(token.HeaderPSN, "1"), 1},
		{"zero PSN", set(token.HeaderPSN, "000000"), 1},
		{"no staging address", set(token.HeaderMRAddr, ""), 1},
		{"zero staging key", set(token.HeaderMRRKey, "0"), 1},
		{"no session", set(token.HeaderSession, ""), 0},
		{"short session", set(token.HeaderSession, "0123"), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigOptions{hooks: rctest.Hooks{PrepareHeader: c.edit}})
			_, err := r.put(t.Context(), "k", 1000)
			wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
			if !errors.Is(err, rc.ErrProtocol) {
				t.Errorf("%v is not ErrProtocol", err)
			}
			if n := r.peer.Seen("cancel"); n != c.cancel {
				t.Errorf("%d CANCELs, want %d", n, c.cancel)
			}
			if r.peer.Seen("ready") != 0 || r.peer.Stored() != 0 {
				t.Error("the session was used all the same")
			}
			if ok, _ := r.client.EligibleGet(0, 1000); ok {
				t.Error("the endpoint is not in the negative cache")
			}
		})
	}
}

func TestGIDFamily(t *testing.T) {
	// Link-local, as no device under test is reached.
	other := verbs.GIDEntry{Index: 7, GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 10}, Type: verbs.GIDRoCEv2}
	t.Run("none of the server's family", func(t *testing.T) {
		r := newRig(t, rigOptions{hooks: rctest.Hooks{PrepareHeader: func(h http.Header) {
			tok, _ := token.ParseReply(h.Get(token.HeaderReply))
			tok.GID = other.GID
			h.Set(token.HeaderReply, tok.Reply())
		}}})
		_, err := r.put(t.Context(), "k", 1000)
		wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
		if !errors.Is(err, rc.ErrGIDFamily) {
			t.Errorf("error %v", err)
		}
		if p, c := r.peer.Seen("prepare"), r.peer.Seen("cancel"); p != 1 || c != 1 {
			t.Errorf("%d PREPAREs, %d CANCELs", p, c)
		}
	})
	t.Run("switched and remembered", func(t *testing.T) {
		var real verbs.GIDEntry
		r := newRig(t, rigOptions{client: func(o *rc.ClientOptions) {
			real = o.GIDs[0]
			o.GIDs = []verbs.GIDEntry{other, real}
			o.GIDIndex, o.GID = other.Index, other.GID
		}})
		r.peer.Set("b/k", random(1000))
		for range 3 {
			must[rc.GetResult](t)(r.get(t.Context(), "k", 0, 1000))
			wantBytes(t, "data", r.seg.Buf[:1000], random(1000))
		}
		if p, c := r.peer.Seen("prepare"), r.peer.Seen("cancel"); p != 4 || c != 1 {
			t.Errorf("%d PREPAREs, %d CANCELs: want one more for the first transfer only", p, c)
		}
	})
}

// TestControlRequestsStayWithTheEndpoint: no redirects, no proxy (section 5).
func TestControlRequestsStayWithTheEndpoint(t *testing.T) {
	var strayed atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strayed.Add(1) }))
	defer other.Close()
	redirect := true
	r := newRig(t, rigOptions{
		hooks: rctest.Hooks{Answer: func(w http.ResponseWriter, req *http.Request) bool {
			if redirect {
				http.Redirect(w, req, other.URL+req.URL.Path, http.StatusTemporaryRedirect)
			}
			return redirect
		}},
		client: func(o *rc.ClientOptions) {
			o.Transport = &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(other.URL) }}
		},
	})
	_, err := r.put(t.Context(), "k", 100)
	wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
	redirect = false
	must[rc.PutResult](t)(r.put(t.Context(), "k", 100))
	if n := strayed.Load(); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// TestSessionsArePinned: the endpoint's name has two addresses with a server
// process each, which do not share sessions.
func TestSessionsArePinned(t *testing.T) {
	own := newEnd(t, nil)
	seg := own.region(t, 1<<16)
	var peers []*rctest.Peer
	port := "0"
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Skipf("cannot listen on %s: %v", host, err)
		}
		_, port, _ = net.SplitHostPort(ln.Addr().String())
		dev := testdevice.Open(t, nil)
		gid := testdevice.GID(t, dev)
		p, err := rctest.New(rctest.Options{Device: dev, GIDIndex: gid.Index, GID: gid.GID, Profile: rctest.ELB})
		if err != nil {
			t.Fatal(err)
		}
		p.Set("b/k", random(5000))
		peers = append(peers, p)
		srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: p}}
		srv.Start()
		t.Cleanup(func() {
			srv.Close()
			p.Close()
		})
	}
	var turn atomic.Int32
	c := newClient(t, own, "http://s3.test:"+port, nil)
	c.SetLookup(0, func(context.Context, string, string) ([]netip.Addr, error) {
		one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
		if turn.Add(1)%2 == 0 {
			one, two = two, one
		}
		return []netip.Addr{one, two}, nil
	})
	for range 20 {
		must[rc.GetResult](t)(c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: seg.Slice(0, 5000)}))
	}
	a, b := peers[0].Seen("ready"), peers[1].Seen("ready")
	if a+b != 20 || a == 0 || b == 0 {
		t.Errorf("sessions %d and %d, want 20 over both servers", a, b)
	}
}

// TestTLSEndpoint: requests go to the pinned address, while certificate and host
// are those of the endpoint's name.
func TestTLSEndpoint(t *testing.T) {
	own, theirs := newEnd(t, nil), testdevice.Open(t, nil)
	seg := own.region(t, 5000)
	gid := testdevice.GID(t, theirs)
	p, err := rctest.New(rctest.Options{Device: theirs, GIDIndex: gid.Index, GID: gid.GID, Profile: rctest.RGW})
	if err != nil {
		t.Fatal(err)
	}
	var hosts sync.Map
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts.Store(r.Host, r.Proto)
		p.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.Close()
		p.Close()
	})
	port := srv.Listener.Addr().(*net.TCPAddr).Port
	host := name("example.com:%d", port)
	c := newClient(t, own, "https://"+host, func(o *rc.ClientOptions) {
		o.Transport = srv.Client().Transport.(*http.Transport)
	})
	c.SetLookup(0, func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	})
	must[rc.PutResult](t)(c.Put(t.Context(), rc.PutRequest{Bucket: "b", Key: "k", Src: seg}))
	hosts.Range(func(got, proto any) bool {
		if got != host || proto != "HTTP/1.1" {
			t.Errorf("request for %v by %v", got, proto)
		}
		return true
	})
	if v := p.Violations(); len(v) > 0 {
		t.Errorf("violations: %q", v)
	}
}
