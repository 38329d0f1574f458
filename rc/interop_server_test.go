package rc_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/rc/rctest/client"
	"s3rdmafs/rc/rctest/sigv4"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// foreign is the server and clients of other makes.
type foreign struct {
	*duo
	profile client.Profile
}

// signed accepts the signatures of every public client: with any service name, and
// payload hash or none. Every x-amz-rdma header must be under it.
func signed(r *http.Request) (rc.Principal, error) {
	denied := &rc.S3Error{Status: http.StatusForbidden, Code: "SignatureDoesNotMatch"}
	a, err := sigv4.Parse(r.Header.Get("Authorization"))
	if err != nil {
		return rc.Principal{}, denied
	}
	hash := r.Header.Get("X-Amz-Content-Sha256")
	if hash == "" {
		hash = sigv4.EmptyHash
	}
	if a.Sum(r, hash, rctest.Secret) != a.Signature {
		return rc.Principal{}, denied
	}
	return rc.Principal{ID: a.AccessKey}, nil
}

// withEveryClient runs a test of the server against each public client's behaviour.
func withEveryClient(t *testing.T, test func(f *foreign)) {
	t.Parallel()
	for _, p := range client.Profiles {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			test(&foreign{duo: newDuo(t, duoOptions{}), profile: p})
		})
	}
}

func (f *foreign) client(tune func(*client.Options)) *client.Client {
	f.t.Helper()
	f.mu.Lock()
	f.handler = f.server.Handler(signed)
	f.mu.Unlock()
	o := client.Options{
		Profile: f.profile, Endpoint: f.url, Device: f.own.dev, PD: f.own.pd, GID: f.own.gid,
		AccessKey: "ACCESS", SecretKey: rctest.Secret, Region: rctest.Region, Deadline: clientPatience,
	}
	if tune != nil {
		tune(&o)
	}
	c, err := client.New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

// empty waits until nothing of the clients is left on the server.
func (f *foreign) empty(t *testing.T) {
	t.Helper()
	eventually(t, "sessions gone", func() bool {
		s := f.server.Stats()
		return s.Sessions == 0 && s.StagingInUse == 0
	})
}

func refusal(t *testing.T, err error, route string, status int) {
	t.Helper()
	var r *client.Refusal
	if !errors.As(err, &r) || r.Route != route || r.Status != status {
		t.Errorf("%v, want %d to %s", err, status, route)
	}
}

// move puts and gets n bytes.
func (f *foreign) move(t *testing.T, c *client.Client, n int) error {
	t.Helper()
	data := random(n)
	if _, err := c.Put(t.Context(), "/b/k", data); err != nil {
		return err
	}
	o, ok := f.objects.get("/b/k")
	if !ok {
		t.Fatal("nothing stored")
	}
	wantBytes(t, "stored object", o.data, data)
	got, final, err := c.Get(t.Context(), "/b/k", 0, n)
	if err != nil {
		return err
	}
	wantBytes(t, "fetched object", got, data)
	if final.ETag != `"`+o.etag+`"` {
		t.Errorf("ETag %s of %s", final.ETag, o.etag)
	}
	return nil
}

func TestClientsTransfers(t *testing.T) {
	withEveryClient(t, func(f *foreign) {
		t := f.t.(*testing.T)
		c := f.client(nil)
		for _, n := range append(sizes(), 16<<20) {
			// HIP-dc: path MTU 1024 passes one packet to a port with another.
			moves := f.profile.MTU == verbs.MTU4096 || n <= f.profile.MTU.Bytes()
			err := f.move(t, c, n)
			if (err == nil) != moves {
				t.Fatalf("%d bytes: %v", n, err)
			}
			if !moves {
				refusal(t, err, "ready", http.StatusBadGateway)
				f.objects.put("/b/k", random(n))
				_, _, err := c.Get(t.Context(), "/b/k", 0, n)
				refusal(t, err, "ready", http.StatusBadGateway)
			}
		}
		if _, err := c.Put(t.Context(), "/b/k", make([]byte, 16<<20+1)); err == nil {
			t.Error("larger than the server's largest transfer")
		} else {
			refusal(t, err, "prepare", http.StatusRequestEntityTooLarge)
		}
		f.empty(t)
	})
}

// TestDataClientOnItsMTU: where the port's MTU is HIP-dc's, its buffer is the limit.
func TestDataClientOnItsMTU(t *testing.T) {
	t.Parallel()
	f := &foreign{duo: newDuo(t, duoOptions{server: func(o *rc.ServerOptions) { o.MTU = verbs.MTU1024 }}), profile: client.HIPDataClient}
	c := f.client(nil)
	for _, n := range []int{64, 1024, 4096} {
		if err := f.move(t, c, n); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	_, err := c.Put(t.Context(), "/b/long", random(4097))
	refusal(t, err, "ready", http.StatusBadGateway)
	if _, ok := f.objects.get("/b/long"); ok {
		t.Error("stored a part of an object")
	}
	f.objects.put("/b/k", random(4097))
	_, _, err = c.Get(t.Context(), "/b/k", 0, 4097)
	refusal(t, err, "ready", http.StatusBadGateway)
	f.empty(t)
}

// TestClientsRanges: exact ranges; one past the end comes shortened, which none of
// the public clients takes (section 11.2).
func TestClientsRanges(t *testing.T) {
	withEveryClient(t, func(f *foreign) {
		t := f.t.(*testing.T)
		c := f.client(nil)
		f.objects.put("/b/k", random(100_000))
		for _, off := range []int64{0, 1, 4095, 12345, 99_999} {
			n := int(min(1000, 100_000-off))
			got, _, err := c.Get(t.Context(), "/b/k", off, n)
			if err != nil {
				t.Fatalf("offset %d: %v", off, err)
			}
			wantBytes(t, "range", got, random(100_000)[off:off+int64(n)])
		}
		_, _, err := c.Get(t.Context(), "/b/k", 99_500, 1000)
		if !errors.Is(err, client.ErrCompletion) && !errors.Is(err, client.ErrRejected) {
			t.Errorf("a shortened range: %v", err)
		}
		_, _, err = c.Get(t.Context(), "/b/k", 100_000, 1000)
		refusal(t, err, "prepare", http.StatusRequestedRangeNotSatisfiable)
		f.empty(t)
	})
}

func TestClientsRefused(t *testing.T) {
	withEveryClient(t, func(f *foreign) {
		t := f.t.(*testing.T)
		var asked atomic.Int32
		f.objects.authorize = func(_ rc.Principal, _ rc.Op, target token.Target) error {
			denied := target.Key == "denied" || target.Key == "denied later" && asked.Add(1) > 1
			if denied {
				return &rc.S3Error{Status: http.StatusForbidden, Code: "AccessDenied"}
			}
			return nil
		}
		for _, key := range []string{"denied", "denied%20later"} {
			f.objects.put("/b/"+key, random(1000))
		}
		c := f.client(func(o *client.Options) { o.Deadline = 200 * time.Millisecond })
		_, _, err := c.Get(t.Context(), "/b/none", 0, 1000)
		refusal(t, err, "prepare", http.StatusNotFound)
		_, err = c.Put(t.Context(), "/missing/k", random(1000))
		refusal(t, err, "prepare", http.StatusNotFound)
		_, _, err = c.Get(t.Context(), "/b/denied", 0, 1000)
		refusal(t, err, "prepare", http.StatusForbidden)
		// READY is refused without a packet: they wait for their CQ until time is over.
		_, _, err = c.Get(t.Context(), "/b/denied%20later", 0, 1000)
		refusal(t, err, "ready", http.StatusForbidden)
		_, _, err = c.Get(t.Context(), "/b/k?unheard=of", 0, 1000)
		refusal(t, err, "prepare", http.StatusNotImplemented)
		var r *client.Refusal
		if errors.As(err, &r) && !r.Marker {
			t.Error("no marker, so they would not fall back")
		}
		wrong := f.client(func(o *client.Options) { o.SecretKey = "wrong" })
		_, err = wrong.Put(t.Context(), "/b/k", random(1000))
		refusal(t, err, "prepare", http.StatusForbidden)
		f.empty(t)
	})
}

// TestClientsBusy: another session of the key has all there is.
func TestClientsBusy(t *testing.T) {
	t.Parallel()
	for _, p := range client.Profiles {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			f := &foreign{duo: newDuo(t, duoOptions{server: func(o *rc.ServerOptions) { o.Sessions = 1 }}), profile: p}
			f.objects.put("/b/k", random(1000))
			c := f.client(nil)
			s, err := c.Open("GET", 1000)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Prepare(t.Context(), "/b/k", 0); err != nil {
				t.Fatal(err)
			}
			_, _, err = c.Get(t.Context(), "/b/k", 0, 1000)
			refusal(t, err, "prepare", http.StatusServiceUnavailable)
			if err := errors.Join(s.Cancel(t.Context()), s.Cancel(t.Context())); err != nil {
				t.Errorf("CANCEL twice: %v", err)
			}
			if err := f.move(t, c, 1000); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestClientsCancel: given up after READY was sent.
func TestClientsCancel(t *testing.T) {
	withEveryClient(t, func(f *foreign) {
		t := f.t.(*testing.T)
		g := newGate()
		defer g.release()
		f.objects.storing = func() error {
			g.hold()
			return nil
		}
		c := f.client(nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Put(ctx, "/b/k", random(1000))
			done <- err
		}()
		g.await(t)
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		case <-time.After(clientPatience):
			t.Fatal("the client hangs")
		}
		g.release()
		// The data had arrived: it is stored all the same (section 9).
		f.empty(t)
		if _, ok := f.objects.get("/b/k"); !ok {
			t.Error("not stored")
		}
	})
}

func TestClientsTargets(t *testing.T) {
	withEveryClient(t, func(f *foreign) {
		t := f.t.(*testing.T)
		c := f.client(nil)
		for target, name := range map[string]token.Target{
			"/b/a%20b":                            {Bucket: "b", Key: "a b"},
			"/b/a%2Fb":                            {Bucket: "b", Key: "a/b"},
			"/b/a%3Fb":                            {Bucket: "b", Key: "a?b"},
			"/b/a+b":                              {Bucket: "b", Key: "a+b"},
			"/b/%01%7f%ff":                        {Bucket: "b", Key: "\x01\x7f\xff"},
			"/b/a b":                              {Bucket: "b", Key: "a b"},
			"/b/k?partNumber=7&uploadId=a%2Fb%3D": {Bucket: "b", Key: "k", PartNumber: 7, UploadID: "a/b="},
			"/b/k?uploadId=u&partNumber=1":        {Bucket: "b", Key: "k", PartNumber: 1, UploadID: "u"},
		} {
			data := random(1000 - len(target))
			if _, err := c.Put(t.Context(), target, data); err != nil {
				t.Errorf("%s: %v", target, err)
				continue
			}
			o, _ := f.objects.get(name.Encode())
			wantBytes(t, target, o.data, data)
		}
		f.objects.put("/b/k?versionId=v1", random(1000))
		got, final, err := c.Get(t.Context(), "/b/k?versionId=v1", 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		wantBytes(t, "version", got, random(1000))
		if final.Version != "v1" {
			t.Errorf("version %q", final.Version)
		}
		for _, target := range []string{"/b/k%zz", "/b/", "/b", "b/k", "//k", "/b/" + strings.Repeat("n", token.MaxTarget)} {
			_, err := c.Put(t.Context(), target, random(10))
			refusal(t, err, "prepare", http.StatusBadRequest)
		}
	})
}

// TestClientsChecksum: who asks for one gets one that HIP-lib can read.
func TestClientsChecksum(t *testing.T) {
	withEveryClient(t, func(f *foreign) {
		t := f.t.(*testing.T)
		c := f.client(func(o *client.Options) {
			o.Edit = func(route string, h http.Header) {
				if route != "cancel" {
					h.Set(token.HeaderChecksumAlgorithm, token.AlgorithmCRC64NVME)
				}
			}
		})
		if err := f.move(t, c, 1000); err != nil {
			t.Error(err)
		}
	})
}
