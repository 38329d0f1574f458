package gateway_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/token"
	"s3rdmafs/verbs/shm"
)

// rawClient sends control requests on one connection.
type rawClient struct {
	e   *testenv.Env
	tcp *net.TCPConn
	c   net.Conn // over tcp
	r   *bufio.Reader
}

func dial(t *testing.T, e *testenv.Env) *rawClient {
	t.Helper()
	u, err := url.Parse(e.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := &rawClient{e: e, tcp: c.(*net.TCPConn), c: c}
	if u.Scheme == "https" {
		r.c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	r.r = bufio.NewReader(r.c)
	return r
}

func (r *rawClient) send(t *testing.T, path string, h http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.e.Endpoint+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = h.Clone()
	sign(t, req, r.e.AccessKey, r.e.SecretKey, r.e.Region, token.EmptyPayloadHash)
	if err := req.Write(r.c); err != nil {
		t.Fatal(err)
	}
}

func (r *rawClient) answer(t *testing.T) *http.Response {
	t.Helper()
	if err := r.c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(r.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp
}

// waitInReady sends PREPARE and READY of a PUT whose data never comes, and
// returns the session when it waits for them.
func (r *rawClient) waitInReady(t *testing.T, bucket string) (session string) {
	t.Helper()
	dev, err := shm.Open(shm.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	gids, err := dev.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	p := token.PrepareRequest{
		Token: token.Token{Transport: 1, QPNum: 5, GID: gids[0].GID, Port: 1},
		PSN:   1, Cookie: 1, Op: token.OpPut, Target: token.Target{Bucket: bucket, Key: "key"}, Size: 1000,
	}
	r.send(t, token.PathPrepare, p.Header())
	resp := r.answer(t)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("PREPARE: %s", resp.Status)
	}
	session = resp.Header.Get(token.HeaderSession)
	ready := token.ReadyRequest{Session: session, Cookie: 1, QPN: 5}
	r.send(t, token.PathReady, ready.Header())
	// One with another QP is bad before the transfer begins, and a conflict then.
	ready.QPN++
	other := dial(t, r.e)
	eventually(t, "the transfer begins", func() bool {
		other.send(t, token.PathReady, ready.Header())
		return other.answer(t).StatusCode == http.StatusConflict
	})
	return session
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	// Shorter than the time that a transfer may take.
	for deadline := time.Now().Add(15 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// A client that is gone during READY takes its session along at once: it does
// not stay until the end of the time that a transfer may take.
func TestClientGoneDuringReady(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			var o gateway.Options
			if scheme == "https" {
				o.CertFile, o.KeyFile = certificate(t)
			}
			o.Buckets = []string{"bucket"}
			e := testenv.Start(t, testenv.Options{RDMA: true, InProcess: true, Gateway: o})
			for name, leave := range map[string]func(*rawClient) error{
				"closed":                   func(r *rawClient) error { return r.c.Close() },
				"closed without a word":    func(r *rawClient) error { return r.tcp.Close() },
				"reset":                    func(r *rawClient) error { r.tcp.SetLinger(0); return r.tcp.Close() },
				"closed after more to say": func(r *rawClient) error { io.WriteString(r.c, "POST / HTTP/1.1\r\n"); return r.c.Close() },
			} {
				t.Run(name, func(t *testing.T) {
					r := dial(t, e)
					r.waitInReady(t, "bucket")
					if err := leave(r); err != nil {
						t.Error(err)
					}
					eventually(t, "the session is gone", func() bool {
						stats, _ := e.Gateway.RCStats()
						qps, _ := e.Gateway.QPStats()
						return stats.Sessions == 0 && qps.InUse == 0
					})
				})
			}
		})
	}
}

// A connection that was watched serves the next requests, also one that came
// before its turn.
func TestConnectionAfterAWatch(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{RDMA: true, Gateway: gateway.Options{Buckets: []string{"bucket"}}})
	r := dial(t, e)
	session := r.waitInReady(t, "bucket")
	next := prepare(e, token.OpPut, token.Target{Bucket: "bucket", Key: "key"})
	r.send(t, next.path, next.header)
	other := dial(t, e)
	other.send(t, token.PathCancel, token.CancelRequest{Session: session, Cookie: 1}.Header())
	if resp := other.answer(t); resp.StatusCode >= 300 {
		t.Errorf("CANCEL: %s", resp.Status)
	}
	if resp := r.answer(t); resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("READY: %s", resp.Status)
	}
	for range 2 {
		if resp := r.answer(t); resp.StatusCode != http.StatusOK {
			t.Errorf("the request after READY: %s", resp.Status)
		}
		r.send(t, next.path, next.header)
	}
}

// certificate writes a self-signed certificate and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	c := s.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		"key":  {Type: "PRIVATE KEY", Bytes: private},
	} {
		var b bytes.Buffer
		if err := pem.Encode(&b, block); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert"), filepath.Join(dir, "key")
}
