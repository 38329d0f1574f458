package rctest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/rc/rctest/client"
	"s3rdmafs/rc/rctest/sigv4"
	"s3rdmafs/verbs"
)

const patience = 20 * time.Second

// fabric is the two devices that the probes of one profile share.
type fabric struct {
	own, theirs verbs.Device
	pd          verbs.PD
	gid         verbs.GIDEntry
	peerGID     verbs.GIDEntry
}

func newFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{own: testdevice.Open(t, nil), theirs: testdevice.Open(t, nil)}
	f.gid, f.peerGID = testdevice.GID(t, f.own), testdevice.GID(t, f.theirs)
	var err error
	if f.pd, err = f.own.AllocPD(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.pd.Close(); err != nil {
			t.Errorf("close PD: %v", err)
		}
	})
	return f
}

// env is one peer, asked by a client that does what a probe wants.
type env struct {
	t    *testing.T
	f    *fabric
	peer *rctest.Peer
	url  string
	tap  *tap

	server  rctest.Profile
	reached chan struct{} // a READY is being held
	opened  chan struct{}

	// For the client of the next request.
	profile    client.Profile
	key        string
	region     string
	edit       func(route string, h http.Header)
	editSigned func(route string, r *http.Request)
}

// tap keeps what was answered last.
type tap struct {
	http.Handler
	mu     sync.Mutex
	status int
	header http.Header
	body   string
}

type tapWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *tapWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *tapWriter) Write(p []byte) (int, error) {
	w.body.Write(p)
	return w.ResponseWriter.Write(p)
}

func (p *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tw := &tapWriter{ResponseWriter: w}
	p.Handler.ServeHTTP(tw, r)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.header, p.body = tw.status, w.Header().Clone(), tw.body.String()
}

const (
	objectSize = 1000
	aliceKey   = "ALICE"
	bobKey     = "BOB"
)

// start makes a peer with the objects b/k and b/k?versionId=v1.
func (f *fabric) start(t *testing.T, p rctest.Profile, tune func(*rctest.Options), hold bool) *env {
	t.Helper()
	e := &env{
		t: t, f: f, key: aliceKey, region: rctest.Region, server: p,
		reached: make(chan struct{}, 1), opened: make(chan struct{}),
	}
	e.profile = client.Profile{
		Name: "probe", Service: p.Service, PayloadHash: sigv4.EmptyHash, MTU: verbs.MTU4096, HopLimit: 64,
	}
	o := rctest.Options{
		Device: f.theirs, GIDIndex: f.peerGID.Index, GID: f.peerGID.GID, Profile: p, Version: "v7",
		Keys: map[string]string{aliceKey: "alice's", bobKey: "bob's"},
	}
	if tune != nil {
		tune(&o)
	}
	if hold {
		o.Hooks.Ready = func() {
			e.reached <- struct{}{}
			<-e.opened
		}
	}
	peer, err := rctest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	peer.Set("b/k", object(0))
	peer.Set("b/k?versionId=v1", object(1))
	peer.Set("b/k?partNumber=1", object(2))
	e.peer = peer
	e.tap = &tap{Handler: peer}
	srv := httptest.NewServer(e.tap)
	e.url = srv.URL
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		if err := peer.Close(); err != nil {
			t.Errorf("close peer: %v", err)
		}
	})
	return e
}

func object(version byte) []byte { return bytes.Repeat([]byte{version + 1}, objectSize) }

func (e *env) client() *client.Client {
	e.t.Helper()
	secret := map[string]string{aliceKey: "alice's", bobKey: "bob's"}[e.key]
	c, err := client.New(client.Options{
		Profile: e.profile, Endpoint: e.url, Device: e.f.own, PD: e.f.pd, GID: e.f.gid,
		AccessKey: e.key, SecretKey: secret, Region: e.region, Deadline: patience,
		Edit: func(route string, h http.Header) {
			if e.edit != nil {
				e.edit(route, h)
			}
		},
		EditSigned: func(route string, r *http.Request) {
			if e.editSigned != nil {
				e.editSigned(route, r)
			}
		},
	})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(c.Close)
	return c
}

func (e *env) open(op string, size int) *client.Session {
	e.t.Helper()
	s, err := e.client().Open(op, size)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			e.t.Errorf("close session: %v", err)
		}
	})
	return s
}

// ctx bounds one request.
func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	e.t.Cleanup(cancel)
	return ctx
}

// outcome writes an answer as the tables have it.
func outcome(err error) string {
	var r *client.Refusal
	switch {
	case err == nil:
		return "200"
	case errors.As(err, &r):
		_, text, _ := strings.Cut(r.Error(), ": ")
		return text
	}
	return err.Error()
}

// prepare is the outcome of a PREPARE for b/k whose headers were edited. An empty
// value removes a header.
func (e *env) prepare(op string, size int, headers ...string) string {
	e.t.Helper()
	s := e.open(op, size)
	e.edit = editor("prepare", headers)
	defer func() { e.edit = nil }()
	return outcome(s.Prepare(e.ctx(), "/b/k", 0))
}

func editor(route string, headers []string) func(string, http.Header) {
	return func(r string, h http.Header) {
		if r != route {
			return
		}
		for i := 0; i < len(headers); i += 2 {
			h.Del(headers[i])
			if headers[i+1] != "" {
				h.Set(headers[i], headers[i+1])
			}
		}
	}
}

// prepared is a session whose QP is in RTS, for a GET with its receive posted.
func (e *env) prepared(op string, size int) *client.Session {
	e.t.Helper()
	s := e.open(op, size)
	if err := s.Prepare(e.ctx(), "/b/k", 0); err != nil {
		e.t.Fatal(err)
	}
	if err := s.Connect(); err != nil {
		e.t.Fatal(err)
	}
	if op == "GET" {
		if err := s.Receive(); err != nil {
			e.t.Fatal(err)
		}
	}
	return s
}

// ready is the outcome of a READY whose headers were edited, and whether the
// session is still there.
func (e *env) ready(s *client.Session, headers ...string) string {
	e.t.Helper()
	e.edit = editor("ready", headers)
	first := outcome(e.readyOf(s))
	e.edit = nil
	if first == "200" {
		return first
	}
	if e.readyOf(s) == nil {
		return first + " kept"
	}
	return first + " ended"
}

// readyOf sends READY and, for a PUT, the data.
func (e *env) readyOf(s *client.Session) error {
	e.t.Helper()
	if s.Op() == "PUT" {
		if err := s.Write(); err != nil {
			return err
		}
	}
	_, err := s.Ready(e.ctx())
	return err
}

// begin starts the READY of a session and returns when the peer holds it.
func (e *env) begin(s *client.Session) <-chan error {
	e.t.Helper()
	result := make(chan error, 1)
	go func() {
		_, err := s.Ready(e.ctx())
		result <- err
	}()
	select {
	case <-e.reached:
	case <-time.After(patience):
		e.t.Fatal("READY never came to the held point")
	}
	return result
}

func (e *env) release() { close(e.opened) }

// cancel is the status of CANCEL.
func (e *env) cancel(s *client.Session) string {
	e.t.Helper()
	if err := s.Cancel(e.ctx()); err != nil {
		return strip(outcome(err))
	}
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	return fmt.Sprint(e.tap.status)
}

// name is what a PUT to a target is stored as, or the outcome.
func (e *env) name(target string) string {
	e.t.Helper()
	before := e.peer.Names()
	s := e.open("PUT", 10)
	if err := s.Prepare(e.ctx(), target, 0); err != nil {
		return outcome(err)
	}
	if err := s.Connect(); err != nil {
		return err.Error()
	}
	if err := e.readyOf(s); err != nil {
		return outcome(err)
	}
	var added []string
	for _, n := range e.peer.Names() {
		if !strings.Contains("\n"+strings.Join(before, "\n")+"\n", "\n"+n+"\n") {
			added = append(added, n)
		}
	}
	return strings.Join(added, " and ")
}

// version is which object a GET of a target delivers.
func (e *env) version(target string) string {
	e.t.Helper()
	data, _, err := e.client().Get(e.ctx(), target, 0, objectSize)
	if err != nil {
		return outcome(err)
	}
	for v, name := range []string{"object", "version", "part"} {
		if bytes.Equal(data, object(byte(v))) {
			return name
		}
	}
	return "other bytes"
}

// seen is a header or the body of the last answer.
func (e *env) seen(header string) string {
	e.tap.mu.Lock()
	defer e.tap.mu.Unlock()
	if header == "body" {
		return e.tap.body
	}
	return e.tap.header.Get(header)
}

func yes(b bool) string { return fmt.Sprint(map[bool]string{true: "yes", false: "no"}[b]) }
