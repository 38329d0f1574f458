package rc_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/rc/rctest/client"
	"s3rdmafs/rc/rctest/sigv4"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// withEveryServer runs a test of the client against each public server's
// behaviour. The peer notes what our client must not do with any of them
// (sections 3, 5, 6, 7.1, 8.1 and 23), and the rig fails the test for it.
func withEveryServer(t *testing.T, test func(t *testing.T, p rctest.Profile)) {
	withServers(t, rctest.Profiles, test)
}

// mainServers differ in what the slower tests are about.
var mainServers = []rctest.Profile{rctest.VGW, rctest.ELB, rctest.HIPRef, rctest.RGW, rctest.EarlyPair}

func withServers(t *testing.T, profiles []rctest.Profile, test func(t *testing.T, p rctest.Profile)) {
	t.Parallel()
	for _, p := range profiles {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// answerOf is the status with which a server refuses, 0 if it does not.
func answerOf(p rctest.Profile, s rctest.Situation) int { return p.Answers[s].Status }

// refused checks an error that came with a server's answer.
func refused(t *testing.T, err error, p rctest.Profile, s rctest.Situation, action rc.Action, phase rc.Phase) {
	t.Helper()
	if e := wantError(t, err, action, phase); e.Status != answerOf(p, s) {
		t.Errorf("%s: status %d, want %d", s, e.Status, answerOf(p, s))
	}
}

const interopChunk = 2 << 20

func TestServersTransfers(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		r := newRig(t, rigOptions{
			profile: p, client: func(o *rc.ClientOptions) { o.ChunkSize = interopChunk },
			peer: func(o *rctest.Options) { o.Version = "v7" },
		})
		for _, n := range append(sizes(), interopChunk) {
			data := random(n)
			copy(r.seg.Buf, data)
			put := must[rc.PutResult](t)(r.put(t.Context(), "dir/put", n))
			o, _ := r.peer.Get("b/dir/put")
			wantBytes(t, "stored object", o.Data, data)
			plant(r.seg.Buf[:n+1])
			got := must[rc.GetResult](t)(r.get(t.Context(), "dir/put", 0, n))
			if got.N != int64(n) {
				t.Errorf("GET of %d bytes moved %d", n, got.N)
			}
			wantBytes(t, "fetched object", r.seg.Buf[:n], data)
			checkCanary(t, r.seg.Buf[n:n+1])
			for what, c := range map[string]struct {
				told bool
				etag string
			}{"PUT": {p.ETagOnPut, put.ETag}, "GET": {p.ETagOnGet, got.ETag}} {
				if want := strings.Trim(o.ETag, `"`); c.told && c.etag != want || !c.told && c.etag != "" {
					t.Errorf("%s: ETag %q, stored %s", what, c.etag, want)
				}
			}
			if versioned := got.VersionID == "v7" && put.VersionID == "v7"; versioned != p.Version {
				t.Errorf("versions %q and %q", got.VersionID, put.VersionID)
			}
		}
		_, err := r.get(t.Context(), "dir/put", 0, interopChunk+1)
		wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
		if !errors.Is(err, rc.ErrNotEligible) {
			t.Errorf("one byte over the chunk size: %v", err)
		}
		r.peer.Set("b/range", random(100_000))
		for _, off := range []int64{1, 100, 4095, 12345, 99_999} {
			n := int(min(5000, 100_000-off))
			got := must[rc.GetResult](t)(r.get(t.Context(), "range", off, n))
			if got.N != int64(n) {
				t.Errorf("range at %d: %d bytes", off, got.N)
			}
			wantBytes(t, "range", r.seg.Buf[:n], random(100_000)[off:off+int64(n)])
		}
		if n := r.peer.Seen("cancel"); n != 0 {
			t.Errorf("%d good transfers were cancelled", n)
		}
		s := r.client.Stats()
		if s.CookieMismatches != 0 || s.GetErrors+s.PutErrors != 0 || s.InUse != 0 {
			t.Errorf("stats after good transfers: %+v", s)
		}
		if n := r.peer.Sessions(); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// TestServersRanges: past the end, section 11.2.
func TestServersRanges(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		r := newRig(t, rigOptions{profile: p})
		r.peer.Set("b/k", random(10_000))
		plant(r.seg.Buf[:20_000])
		got, err := r.get(t.Context(), "k", 9000, 5000)
		if answerOf(p, rctest.RangeEnd) != 0 {
			refused(t, err, p, rctest.RangeEnd, rc.ActionHTTP, rc.PhasePrepare)
		} else {
			if err != nil || got.N != 1000 {
				t.Fatalf("%d bytes, %v; want 1000", got.N, err)
			}
			wantBytes(t, "shortened range", r.seg.Buf[:1000], random(10_000)[9000:])
		}
		checkCanary(t, r.seg.Buf[1000:20_000])
		_, err = r.get(t.Context(), "k", 10_000, 5000)
		refused(t, err, p, rctest.RangeStart, rc.ActionHTTP, rc.PhasePrepare)
		must[rc.GetResult](t)(r.get(t.Context(), "k", 0, 10_000))
		if n := r.peer.Seen("cancel"); n != 0 {
			t.Errorf("%d CANCELs without a session", n)
		}
	})
}

// TestServersRefuse: no such key or bucket, no access, an object only HTTP serves.
func TestServersRefuse(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		r := newRig(t, rigOptions{profile: p, exec: time.Second, hooks: rctest.Hooks{
			Deny:       func(_, name string) bool { return name == "b/denied" },
			Unservable: func(name string) bool { return name == "b/encrypted" },
		}})
		for _, name := range []string{"b/k", "b/denied", "b/encrypted"} {
			r.peer.Set(name, random(1000))
		}
		must[rc.GetResult](t)(r.get(t.Context(), "k", 0, 1000))
		for key, s := range map[string]rctest.Situation{"denied": rctest.Denied, "encrypted": rctest.NotServable} {
			_, err := r.get(t.Context(), key, 0, 1000)
			if answerOf(p, s) == 0 {
				if err != nil {
					t.Errorf("%s: %v", key, err)
				}
				continue
			}
			refused(t, err, p, s, rc.ActionHTTP, rc.PhasePrepare)
			if ok, reason := r.client.EligibleGet(0, 1000); !ok {
				t.Errorf("%s: one object condemned the endpoint: %s", key, reason)
			}
		}
		put := rc.PutRequest{Bucket: rctest.MissingBucket, Key: "k", Src: r.seg.Slice(0, 1000)}
		_, err := r.client.Put(t.Context(), put)
		switch {
		case answerOf(p, rctest.NoBucket) == 0:
			if err != nil {
				t.Errorf("PUT where there are no buckets: %v", err)
			}
		case p.MissingBucketInReady:
			refused(t, err, p, rctest.StoreFailed, unsigned(p, rc.ActionHTTP), rc.PhaseFinal)
		default:
			refused(t, err, p, rctest.NoBucket, rc.ActionHTTP, rc.PhasePrepare)
		}
		_, err = r.get(t.Context(), "none", 0, 1000)
		refused(t, err, p, rctest.NoKey, rc.ActionHTTP, rc.PhasePrepare)
		// HIP-ref answers like a server that is broken, and is left alone for a while.
		broken := answerOf(p, rctest.NoKey) >= 500
		if ok, reason := r.client.EligibleGet(0, 1000); ok == broken {
			t.Errorf("after a missing key: eligible %v, %s", ok, reason)
		}
	})
}

// unsigned is what becomes of a PUT after an answer to READY: where servers put
// neither echo nor body into errors, it may as well come from a proxy, and the
// object may be stored.
func unsigned(p rctest.Profile, action rc.Action) rc.Action {
	if !p.ErrorXML && !p.ErrorEcho {
		return rc.ActionUnknown
	}
	return action
}

// TestServersStoreFails: F8.
func TestServersStoreFails(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		r := newRig(t, rigOptions{profile: p, hooks: rctest.Hooks{Store: func() (int, string) { return http.StatusForbidden, "QuotaExceeded" }}})
		_, err := r.put(t.Context(), "k", 1000)
		if answerOf(p, rctest.StoreFailed) != 0 {
			refused(t, err, p, rctest.StoreFailed, unsigned(p, rc.ActionHTTP), rc.PhaseFinal)
			return
		}
		if e := wantError(t, err, unsigned(p, rc.ActionFail), rc.PhaseFinal); e.Status != http.StatusForbidden {
			t.Errorf("status %d", e.Status)
		}
	})
}

// TestServersLimit: another client of the same key has the only session.
func TestServersLimit(t *testing.T) {
	withServers(t, mainServers, func(t *testing.T, p rctest.Profile) {
		p.Sessions = 1
		r := newRig(t, rigOptions{profile: p, violations: true})
		r.peer.Set("b/k", random(1000))
		c, err := client.New(client.Options{
			Profile:  client.Profile{Service: p.Service, PayloadHash: sigv4.EmptyHash, MTU: verbs.MTU4096, HopLimit: 64},
			Endpoint: r.url, Device: r.own.dev, PD: r.own.pd, GID: r.own.gid,
			AccessKey: "ACCESS", SecretKey: rctest.Secret, Region: rctest.Region, Deadline: clientPatience,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := c.Open("GET", 1000)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.Prepare(t.Context(), "/b/k", 0); err != nil {
			t.Fatal(err)
		}
		_, err = r.get(t.Context(), "k", 0, 1000)
		refused(t, err, p, rctest.Limit, rc.ActionHTTP, rc.PhasePrepare)
		if s := r.client.Stats(); s.Bound != 4 || !s.Usable {
			t.Errorf("bound %d, usable %v", s.Bound, s.Usable)
		}
		if err := s.Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		must[rc.GetResult](t)(r.get(t.Context(), "k", 0, 1000))
	})
}

// TestServersExpired: READY comes too late, twice (section 14.4, 17.3).
func TestServersExpired(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		p.PrepareTime = time.Nanosecond
		r := newRig(t, rigOptions{profile: p})
		r.peer.Set("b/k", random(1000))
		_, err := r.get(t.Context(), "k", 0, 1000)
		refused(t, err, p, rctest.UnknownSession, rc.ActionHTTP, rc.PhaseReady)
		if n := r.peer.Seen("prepare"); n != 2 {
			t.Errorf("%d PREPAREs", n)
		}
		if ok, reason := r.client.EligibleGet(0, 1000); !ok {
			t.Errorf("the endpoint was condemned: %s", reason)
		}
	})
}

// TestServersBusy: the server cannot reach the client once. VGW and RGW keep the
// session for another READY, which our client does not send: it begins anew.
func TestServersBusy(t *testing.T) {
	testdevice.SoftwareOnly(t)
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		var failed atomic.Bool
		r := newRig(t, rigOptions{profile: p, theirs: &shm.Faults{Hook: func(at shm.Point, w shm.Write) shm.Verdict {
			if at == shm.PointSend && failed.CompareAndSwap(false, true) {
				return shm.Verdict{Status: verbs.WCRNRRetryExcErr}
			}
			return shm.Verdict{}
		}}})
		r.peer.Set("b/k", random(1000))
		_, err := r.get(t.Context(), "k", 0, 1000)
		if p.Answers[rctest.PeerBusy].Rearms {
			if err != nil {
				t.Fatal(err)
			}
			if pr, c := r.peer.Seen("prepare"), r.peer.Seen("cancel"); pr != 2 || c != 1 {
				t.Errorf("%d PREPAREs, %d CANCELs", pr, c)
			}
		} else {
			refused(t, err, p, rctest.PeerBusy, rc.ActionHTTP, rc.PhaseReady)
			must[rc.GetResult](t)(r.get(t.Context(), "k", 0, 1000))
		}
		wantBytes(t, "data", r.seg.Buf[:1000], random(1000))
		if n := r.peer.Sessions(); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// TestServersCancel: the caller gives up while the server holds READY. Its memory
// is its own again, whatever the server still does; the servers end the transfer
// by themselves.
func TestServersCancel(t *testing.T) {
	withServers(t, mainServers, func(t *testing.T, p rctest.Profile) {
		for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
			t.Run(string(op), func(t *testing.T) {
				g := newGate()
				r := newRig(t, rigOptions{profile: p, exec: 200 * time.Millisecond, hooks: rctest.Hooks{Ready: g.hold}})
				t.Cleanup(g.release)
				r.peer.Set("b/k", random(1000))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					var err error
					if op == rc.OpGet {
						_, err = r.get(ctx, "k", 0, 1000)
					} else {
						_, err = r.put(ctx, "new", 1000)
					}
					done <- err
				}()
				g.await(t)
				cancel()
				var err error
				select {
				case err = <-done:
				case <-time.After(clientPatience):
					t.Fatal("the transfer hangs")
				}
				plant(r.seg.Buf)
				e, ok := err.(*rc.Error)
				if !ok || !errors.Is(err, context.Canceled) || e.Action == rc.ActionHTTP {
					t.Errorf("error %v", err)
				}
				if n := r.peer.Seen("cancel"); n != 1 {
					t.Errorf("%d CANCELs", n)
				}
				g.release()
				r.quiet(3)
				checkCanary(t, r.seg.Buf)
				if op == rc.OpPut && r.peer.Stored() != 0 && e.Action != rc.ActionUnknown {
					t.Error("stored, and the caller was not told that it may be")
				}
			})
		}
	})
}

// TestServersParts: a part goes by RDMA only after the endpoint said that it can.
func TestServersParts(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		r := newRig(t, rigOptions{profile: p})
		part := rc.PutRequest{Bucket: "b", Key: "k", UploadID: "a/b=", PartNumber: 7, Src: r.seg.Slice(0, 1000)}
		copy(r.seg.Buf, random(1000))
		const stored = "b/k?partNumber=7&uploadId=a%2Fb%3D"
		_, err := r.client.Put(t.Context(), part)
		if p.CapabilitiesAlways {
			if err != nil {
				t.Fatal(err)
			}
		} else {
			wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
			if !errors.Is(err, rc.ErrNotEligible) || r.peer.Stored() != 0 {
				t.Errorf("%v, stored %q", err, r.peer.Names())
			}
		}
		// VGW-mp tells with FINAL only.
		must[rc.PutResult](t)(r.put(t.Context(), "other", 1000))
		_, err = r.client.Put(t.Context(), part)
		if !strings.Contains(p.Capabilities, "mp") {
			wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
			if _, ok := r.peer.Get("b/k"); ok {
				t.Error("the part was stored as the object")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		o, _ := r.peer.Get(stored)
		wantBytes(t, "part", o.Data, random(1000))
	})
}

// TestServersOddKeys: what a server makes of a key is its own; what was put under
// a key is fetched by it, save where ELB cuts keys off.
func TestServersOddKeys(t *testing.T) {
	encoded := func(key string) string {
		return strings.TrimPrefix(token.Target{Bucket: "b", Key: key}.Encode(), "/")
	}
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		// Of a server that cuts keys off, ours knows nothing.
		r := newRig(t, rigOptions{profile: p, violations: p.Target == rctest.TargetLibrary})
		for i, key := range []string{"a b", "a+b", "a%2Fb", "100%", "ü/ß", "a//b", "\x01\x7f\xff", "a&b=c;d", "~.-_", " lead", "trail "} {
			data := random(1000 + i)
			copy(r.seg.Buf, data)
			must[rc.PutResult](t)(r.put(t.Context(), key, len(data)))
			name := "b/" + key
			if p.Target == rctest.TargetVerbatim {
				name = encoded(key)
			}
			o, ok := r.peer.Get(name)
			if !ok {
				t.Errorf("%q is stored as one of %q", key, r.peer.Names())
			}
			wantBytes(t, key, o.Data, data)
			clear(r.seg.Buf[:len(data)])
			must[rc.GetResult](t)(r.get(t.Context(), key, 0, len(data)))
			wantBytes(t, key, r.seg.Buf[:len(data)], data)
		}
		for _, key := range []string{"q?1", "q?2"} {
			must[rc.PutResult](t)(r.put(t.Context(), key, len(key)))
		}
		_, cut := r.peer.Get("b/q")
		_, whole := r.peer.Get(map[bool]string{false: "b/q?1", true: encoded("q?1")}[p.Target == rctest.TargetVerbatim])
		if cut != (p.Target == rctest.TargetLibrary) || whole == cut {
			t.Errorf("keys with a question mark: %q", r.peer.Names())
		}
	})
}

// TestServersInParallel: more transfers than ELB has threads.
func TestServersInParallel(t *testing.T) {
	withServers(t, mainServers, func(t *testing.T, p rctest.Profile) {
		const workers = 12
		r := newRig(t, rigOptions{profile: p, client: func(o *rc.ClientOptions) { o.Sessions = workers }})
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				seg := r.seg.Slice(i*10_000, 10_000)
				data := random(10_000 + i)[:10_000]
				for range 3 {
					key := name("k%d", i)
					copy(seg.Buf, data)
					if _, err := r.client.Put(t.Context(), rc.PutRequest{Bucket: "b", Key: key, Src: seg}); err != nil {
						t.Errorf("PUT %d: %v", i, err)
					}
					clear(seg.Buf)
					if _, err := r.client.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: key, Dst: seg}); err != nil {
						t.Errorf("GET %d: %v", i, err)
					}
					if string(seg.Buf) != string(data) {
						t.Errorf("%s came back different", key)
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestServersSwitchedOff: nobody falls into anything but the negative cache.
func TestServersSwitchedOff(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		r := newRig(t, rigOptions{profile: p, peer: func(o *rctest.Options) { o.Off = true }})
		_, err := r.put(t.Context(), "k", 1000)
		refused(t, err, p, rctest.Off, rc.ActionHTTP, rc.PhasePrepare)
		r.client.HTTPSucceeded(err)
		if ok, _ := r.client.EligibleGet(0, 1000); ok {
			t.Error("still eligible")
		}
	})
}

// TestServiceName: HIP-ref wants another service in the signature, the others s3.
func TestServiceName(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		if p.Service == "" {
			return
		}
		wrong := map[string]string{"s3": "hipobj", "hipobj": "s3"}[p.Service]
		r := newRig(t, rigOptions{profile: p, client: func(o *rc.ClientOptions) { o.Service = wrong }})
		_, err := r.put(t.Context(), "k", 1000)
		refused(t, err, p, rctest.OtherScope, rc.ActionHTTP, rc.PhasePrepare)
	})
}

// TestPathMTU: both ends must have the same, and the smaller one is the limit of
// what passes otherwise (section 12.3).
func TestPathMTU(t *testing.T) {
	withServers(t, mainServers, func(t *testing.T, p rctest.Profile) {
		for _, c := range []struct {
			mtu   verbs.MTU
			n     int
			moves bool
		}{{verbs.MTU4096, 1024, true}, {verbs.MTU4096, 1025, false}, {verbs.MTU1024, 4096, true}} {
			r := newRig(t, rigOptions{profile: p, exec: time.Second, client: func(o *rc.ClientOptions) { o.MTU = verbs.MTU1024 },
				peer: func(o *rctest.Options) { o.MTU = c.mtu }})
			r.peer.Set("b/k", random(c.n))
			_, gerr := r.get(t.Context(), "k", 0, c.n)
			copy(r.seg.Buf, random(c.n))
			_, perr := r.put(t.Context(), "new", c.n)
			if (gerr == nil) != c.moves || (perr == nil) != c.moves {
				t.Errorf("%d bytes to a server with MTU %d: GET %v, PUT %v", c.n, c.mtu.Bytes(), gerr, perr)
			}
			if r.peer.Stored() != 0 != c.moves {
				t.Error("stored what did not arrive, or not what did")
			}
		}
	})
}

// TestServersGID: the server's table begins with a link-local entry, which the
// client cannot reach (section 12.4).
func TestServersGID(t *testing.T) {
	withEveryServer(t, func(t *testing.T, p rctest.Profile) {
		r := newRig(t, rigOptions{profile: p, peer: func(o *rctest.Options) {
			local := verbs.GIDEntry{Index: 7, GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 10}, Type: verbs.GIDRoCEv2}
			o.GIDs = []verbs.GIDEntry{local, {Index: o.GIDIndex, GID: o.GID, Type: verbs.GIDRoCEv2}}
		}})
		_, err := r.put(t.Context(), "k", 1000)
		// The hint finds no IPv4 entry on the software device, but on others.
		first := p.GID == rctest.GIDFirst || p.GID == rctest.GIDHintIPv4 && !r.own.gid.GID.Addr().Is4In6()
		if !first {
			if err != nil {
				t.Error(err)
			}
			return
		}
		wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
		if !errors.Is(err, rc.ErrGIDFamily) {
			t.Errorf("error %v", err)
		}
		if n := r.peer.Seen("cancel"); n != 1 {
			t.Errorf("%d CANCELs", n)
		}
	})
}
