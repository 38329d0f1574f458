package faultproxy

import (
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Proxy is one listening proxy. Its methods may be called at any time.
type Proxy struct {
	URL string

	target    *url.URL
	transport *http.Transport

	mu    sync.Mutex
	rules []*Rule
	seen  []Request
}

// Request is what the proxy saw of one request.
type Request struct {
	Method, Path string // the path as it was sent, still encoded
	Query        url.Values
	Header       http.Header
}

// Start starts a proxy in front of the server at target, a URL. It ends with the test.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: u, transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
	s := httptest.NewServer(p)
	p.URL = s.URL
	t.Cleanup(func() {
		p.Clear()
		s.CloseClientConnections()
		s.Close()
		p.transport.CloseIdleConnections()
	})
	return p
}

// Rule applies a fault to requests.
type Rule struct {
	Method string                   // "": any
	Key    string                   // suffix of the decoded path; "": any
	Match  func(*http.Request) bool // nil: any
	Skip   int                      // matching requests that pass before the fault
	Times  int                      // how often; 0: always
	Fault  Fault

	hits int // under Proxy.mu
}

// Fault deals with one request in place of the proxy.
type Fault func(*Exchange)

// Add adds a rule. Of several that match, the one added first acts.
func (p *Proxy) Add(r Rule) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &r)
	return &r
}

// Clear removes all rules.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Hits is how often the rule's fault acted.
func (p *Proxy) Hits(r *Rule) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, r.hits-r.Skip)
}

// Requests returns the requests of a method so far; "" all.
func (p *Proxy) Requests(method string) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Request
	for _, r := range p.seen {
		if method == "" || r.Method == method {
			out = append(out, r)
		}
	}
	return out
}

// faultFor notes a request and finds its fault.
func (p *Proxy) faultFor(r *http.Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, Request{r.Method, r.URL.EscapedPath(), r.URL.Query(), r.Header.Clone()})
	for _, rule := range p.rules {
		if rule.Method != "" && rule.Method != r.Method || !strings.HasSuffix(r.URL.Path, rule.Key) ||
			rule.Match != nil && !rule.Match(r) || rule.Times > 0 && rule.hits >= rule.Skip+rule.Times {
			continue
		}
		if rule.hits++; rule.hits > rule.Skip {
			return rule.Fault
		}
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &Exchange{p: p, W: w, R: r}
	if fault := p.faultFor(r); fault != nil {
		fault(x)
		return
	}
	if resp := x.Forward(); resp != nil {
		x.Reply(resp)
	}
}

// Exchange is one request under way.
type Exchange struct {
	W http.ResponseWriter
	R *http.Request

	p *Proxy
}

// Forward sends the request to the server. The caller replies with or closes
// the answer. Nil: the server did not answer, and the client's connection was reset.
func (x *Exchange) Forward() *http.Response {
	out := x.R.Clone(x.R.Context())
	out.URL.Scheme, out.URL.Host = x.p.target.Scheme, x.p.target.Host
	out.RequestURI = ""
	resp, err := x.p.transport.RoundTrip(out)
	if err != nil {
		x.Reset()
		return nil
	}
	return resp
}

// Reply hands an answer on. When its body ends early, so does the client's connection.
func (x *Exchange) Reply(resp *http.Response) {
	defer resp.Body.Close()
	maps.Copy(x.W.Header(), resp.Header)
	x.W.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(x.W, resp.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// Reset ends the client's connection with a TCP reset.
func (x *Exchange) Reset() {
	conn, _, err := http.NewResponseController(x.W).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
