package gateway_test

import (
	"bytes"
	"errors"
	"net/http"
	"testing"
	"time"

	"s3rdmafs/internal/testenv"
	"s3rdmafs/rc/rctest/client"
	"s3rdmafs/rc/rctest/sigv4"
	"s3rdmafs/verbs"
)

// The public clients of hipobj-rc-v2, against a gateway that checks signatures.
func TestPublicClients(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true})
	b := e.NewBucket("")
	for _, p := range client.Profiles {
		t.Run(p.Name, func(t *testing.T) {
			r := testenv.NewRDMA(t)
			c := publicClient(t, e, r, p)
			if p.Service != "s3" || p.PayloadHash == "" {
				// It signs for hipObject's own test server only.
				_, err := c.Put(t.Context(), "/"+b+"/key", data(1000))
				if status := refused(err, "prepare"); status != http.StatusBadRequest && status != http.StatusForbidden {
					t.Fatalf("with its own signature: %v, want 400 or 403", err)
				}
				p.Service, p.PayloadHash = "s3", sigv4.EmptyHash
				c = publicClient(t, e, r, p)
			}
			for _, n := range []int{1, 1000, 4095, 64 << 10, 1<<20 + 1} {
				if p.MTU != verbs.MTU4096 && n > p.MTU.Bytes() {
					continue
				}
				want := data(n)
				f, err := c.Put(t.Context(), "/"+b+"/dir/a%20key%3F", want)
				if err != nil {
					t.Fatalf("PUT of %d bytes: %v", n, err)
				}
				if f.ETag != `"`+md5hex(want)+`"` {
					t.Errorf("PUT of %d bytes: ETag %s", n, f.ETag)
				}
				if !bytes.Equal(e.Get(b, "dir/a key?"), want) {
					t.Errorf("%d bytes: HTTP reads other bytes", n)
				}
				got, f, err := c.Get(t.Context(), "/"+b+"/dir/a%20key%3F", 0, n)
				if err != nil {
					t.Fatalf("GET of %d bytes: %v", n, err)
				}
				if !bytes.Equal(got, want) || f.ETag != `"`+md5hex(want)+`"` {
					t.Errorf("GET of %d bytes: %d bytes with ETag %s", n, len(got), f.ETag)
				}
			}
			whole := data(100_000)
			e.Put(b, "by http", whole)
			got, _, err := c.Get(t.Context(), "/"+b+"/by%20http", 12345, 1000)
			if err != nil || !bytes.Equal(got, whole[12345:13345]) {
				t.Errorf("range: %d bytes, %v", len(got), err)
			}
			_, _, err = c.Get(t.Context(), "/"+b+"/none", 0, 1000)
			if refused(err, "prepare") != http.StatusNotFound {
				t.Errorf("missing key: %v", err)
			}
			_, _, err = c.Get(t.Context(), "/"+b+"/by%20http", 100_000, 1000)
			if refused(err, "prepare") != http.StatusRequestedRangeNotSatisfiable {
				t.Errorf("range past the end: %v", err)
			}
			s, err := c.Open("PUT", 1000)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := errors.Join(s.Prepare(t.Context(), "/"+b+"/k", 0), s.Cancel(t.Context()), s.Cancel(t.Context())); err != nil {
				t.Errorf("PREPARE and CANCEL twice: %v", err)
			}
			if _, err := s.Ready(t.Context()); refused(err, "ready") != http.StatusNotFound {
				t.Errorf("READY after CANCEL: %v", err)
			}
		})
	}
}

func publicClient(t *testing.T, e *testenv.Env, r *testenv.RDMA, p client.Profile) *client.Client {
	t.Helper()
	gids, err := r.Device.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{
		Profile: p, Endpoint: e.Endpoint, Device: r.Device, PD: r.PD, GID: gids[0],
		AccessKey: e.AccessKey, SecretKey: e.SecretKey, Region: e.Region, Deadline: 10 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// refused is the status with which a request was refused, 0 if it was not.
func refused(err error, route string) int {
	var r *client.Refusal
	if errors.As(err, &r) && r.Route == route {
		return r.Status
	}
	return 0
}
