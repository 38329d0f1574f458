package rc

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"s3rdmafs/token"
)

const (
	// maxErrorBody is as much of an answer's body as is read (section 5).
	maxErrorBody = 64 << 10
	// idleConnTime is below what servers hold idle connections for, so that a READY
	// is seldom written into a connection that the server is just closing.
	idleConnTime = 20 * time.Second
)

// control sends the control requests of one endpoint.
type control struct {
	client          *http.Client
	scheme, host    string // host is the authority as it is signed
	region, service string
	resolver        *resolver
	ep              *endpoint
}

func newControl(o ClientOptions, ep *endpoint) *control {
	var tr *http.Transport
	if o.Transport != nil {
		tr = o.Transport.Clone()
	} else {
		tr = &http.Transport{
			MaxIdleConnsPerHost: 2 * o.Sessions,
			IdleConnTimeout:     idleConnTime,
			TLSHandshakeTimeout: o.Timeouts.Connect,
		}
	}
	tr.Proxy = nil
	tr.ExpectContinueTimeout = 0
	tr.DisableCompression = true
	tr.ForceAttemptHTTP2 = false
	tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	if tr.DialContext == nil {
		tr.DialContext = (&net.Dialer{Timeout: o.Timeouts.Connect}).DialContext
	}
	// Requests name the pinned address; the certificate is still for the endpoint's name.
	if tr.TLSClientConfig == nil {
		tr.TLSClientConfig = &tls.Config{}
	}
	if tr.TLSClientConfig.ServerName == "" {
		tr.TLSClientConfig.ServerName = o.Endpoint.Hostname()
	}
	port := o.Endpoint.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[o.Endpoint.Scheme]
	}
	return &control{
		client: &http.Client{
			Transport:     tr,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		scheme:   o.Endpoint.Scheme,
		host:     o.Endpoint.Host,
		region:   o.Region,
		service:  o.Service,
		resolver: &resolver{host: o.Endpoint.Hostname(), port: port, lookup: net.DefaultResolver.LookupNetIP, hold: resolveTime},
		ep:       ep,
	}
}

// answer to a control request; its body was read.
type answer struct {
	status        int
	header        http.Header
	code, message string // of an S3 error document, else ""
}

// peer is a server process and who we are to it; all requests of a session use one.
type peer struct {
	addr  string // resolved host:port
	creds token.Credentials
}

// wire is how far a request got.
type wire struct {
	sent   bool // some of it may have left
	reused bool // on a connection that had served others
}

// post sends one request and reads its answer. wrote, unless nil, is called once
// all of the request has left.
func (k *control) post(ctx context.Context, p peer, path string, h http.Header, wrote func()) (answer, wire, error) {
	// The trace functions run on goroutines of the transport, which may outlive this call.
	var mu sync.Mutex
	var state wire
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			mu.Lock()
			defer mu.Unlock()
			state = wire{sent: true, reused: info.Reused}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if wrote != nil && info.Err == nil {
				wrote()
			}
		},
	})
	u := url.URL{Scheme: k.scheme, Host: p.addr, Path: path}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), nil)
	if err != nil {
		return answer{}, wire{}, err
	}
	req.Host = k.host
	req.Header = h
	if err := token.Sign(req, p.creds, k.region, k.service, time.Now()); err != nil {
		return answer{}, wire{}, err
	}
	res, err := k.client.Do(req)
	mu.Lock()
	w := state
	mu.Unlock()
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return answer{}, w, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil {
		return answer{}, w, err
	}
	a := answer{status: res.StatusCode, header: res.Header}
	if res.StatusCode >= 400 {
		var doc struct{ Code, Message string }
		if xml.NewDecoder(bytes.NewReader(body)).Decode(&doc) == nil {
			a.code, a.message = doc.Code, doc.Message
		}
	}
	k.ep.learn(path, a)
	return a, w, nil
}

// prepare sends a first request: it tries the endpoint's addresses in turn until
// one can be connected to, and returns the one that did.
func (k *control) prepare(ctx context.Context, creds token.Credentials, h http.Header) (answer, peer, error) {
	addrs, err := k.resolver.addrs(ctx)
	if err != nil {
		return answer{}, peer{}, err
	}
	for i, addr := range addrs {
		p := peer{addr: addr, creds: creds}
		a, w, err := k.post(ctx, p, token.PathPrepare, h.Clone(), nil)
		if err != nil && w.reused && ctx.Err() == nil {
			// The server closed an idle connection just then. A session that it
			// may have opened all the same expires; nothing was transferred.
			k.client.CloseIdleConnections()
			a, w, err = k.post(ctx, p, token.PathPrepare, h.Clone(), nil)
		}
		if err == nil {
			k.resolver.prefer(addr)
			return a, p, nil
		}
		if w.sent || ctx.Err() != nil || i == len(addrs)-1 {
			k.resolver.forget()
			return answer{}, peer{}, err
		}
	}
	return answer{}, peer{}, &net.DNSError{Err: "no address", Name: k.resolver.host}
}

// resolveTime is how long resolved addresses are used for new sessions.
const resolveTime = 10 * time.Second

// resolver pins sessions to one address of the endpoint (section 5).
type resolver struct {
	host, port string
	lookup     func(ctx context.Context, network, host string) ([]netip.Addr, error)
	hold       time.Duration

	mu    sync.Mutex
	known []string // host:port, the preferred one first
	at    time.Time
}

func (r *resolver) addrs(ctx context.Context) ([]string, error) {
	if net.ParseIP(r.host) != nil {
		return []string{net.JoinHostPort(r.host, r.port)}, nil
	}
	r.mu.Lock()
	known := r.known
	fresh := time.Since(r.at) < r.hold
	r.mu.Unlock()
	if len(known) > 0 && fresh {
		return known, nil
	}
	ips, err := r.lookup(ctx, "ip", r.host)
	if err != nil {
		return nil, err
	}
	var addrs []string
	for _, ip := range ips {
		addrs = append(addrs, net.JoinHostPort(ip.Unmap().String(), r.port))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.at = addrs, time.Now()
	return addrs, nil
}

func (r *resolver) prefer(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) > 0 && r.known[0] != addr {
		r.known = first(r.known, addr)
	}
}

func (r *resolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = nil
}

// first returns a new list with addr moved to the front.
func first(addrs []string, addr string) []string {
	out := []string{addr}
	for _, a := range addrs {
		if a != addr {
			out = append(out, a)
		}
	}
	return out
}
