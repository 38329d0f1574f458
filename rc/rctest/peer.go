package rctest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"s3rdmafs/verbs"
)

// MissingBucket is the name of the only bucket that does not exist.
const MissingBucket = "missing"

// Options of a Peer.
type Options struct {
	Device   verbs.Device
	Port     uint8
	GIDIndex int
	GID      verbs.GID
	// GIDs is the table from which the profile chooses instead, if there is one.
	GIDs []verbs.GIDEntry
	LID  uint16
	// MTU of the port; 0 is 4096.
	MTU     verbs.MTU
	Profile Profile
	Hooks   Hooks
	// Keys are secrets by access key; nil takes every key with Secret.
	Keys map[string]string
	// Version is the version id of every object, "" when not versioned.
	Version string
	// Off answers as a server with the protocol switched off.
	Off bool
	// Exec bounds the data phase; 0 is 5 s.
	Exec time.Duration
}

// Object is what a peer stores under a name.
type Object struct {
	Data []byte
	ETag string // in quotes
}

// Peer is the HTTP handler of a server. Close it after its HTTP server.
type Peer struct {
	o       Options
	pd      verbs.PD
	threads chan struct{} // nil: no limit
	readies chan struct{}

	mu         sync.Mutex
	stopping   bool
	objects    map[string]Object
	sessions   map[string]*session
	violations []string
	seen       map[string]int
	stored     int
}

// New makes a peer on a device.
func New(o Options) (*Peer, error) {
	pd, err := o.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	if o.Port == 0 {
		o.Port = 1
	}
	if o.MTU == 0 {
		o.MTU = verbs.MTU4096
	}
	if o.Exec == 0 {
		o.Exec = 5 * time.Second
	}
	if len(o.GIDs) == 0 {
		o.GIDs = []verbs.GIDEntry{{Index: o.GIDIndex, GID: o.GID}}
	}
	p := &Peer{
		o: o, pd: pd,
		objects:  make(map[string]Object),
		sessions: make(map[string]*session),
		seen:     make(map[string]int),
	}
	if n := o.Profile.Threads; n > 0 {
		p.threads = make(chan struct{}, n)
	}
	if n := o.Profile.Readies; n > 0 {
		p.readies = make(chan struct{}, n)
	}
	return p, nil
}

// Close ends all sessions.
func (p *Peer) Close() error {
	p.mu.Lock()
	left := p.sessions
	p.sessions = make(map[string]*session)
	p.mu.Unlock()
	for _, s := range left {
		s.close()
	}
	return p.pd.Close()
}

// ShutDown makes the peer refuse new sessions.
func (p *Peer) ShutDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = true
}

// Set stores an object under "bucket/key", or "bucket/key?versionId=x".
func (p *Peer) Set(name string, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.objects[name] = Object{Data: data, ETag: etagOf(data)}
}

// Get returns the object of a name.
func (p *Peer) Get(name string) (Object, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o, ok := p.objects[name]
	return o, ok
}

// Names lists the objects.
func (p *Peer) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.objects))
}

// Stored counts the PUTs that were stored.
func (p *Peer) Stored() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stored
}

// Violations lists what clients did that ours must not do.
func (p *Peer) Violations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.violations...)
}

// Seen counts the requests of "prepare", "ready", "cancel" or "next".
func (p *Peer) Seen(route string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[route]
}

// Sessions counts the sessions that exist, dead entries too.
func (p *Peer) Sessions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sessions)
}

func etagOf(data []byte) string { return fmt.Sprintf("%q", strconv.FormatUint(crc(data), 16)) }

func (p *Peer) violation(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.violations = append(p.violations, fmt.Sprintf(format, args...))
}

// enter takes a place of a limit; false when the client has gone.
func enter(places chan struct{}, r *http.Request) bool {
	if places == nil {
		return true
	}
	select {
	case places <- struct{}{}:
		return true
	case <-r.Context().Done():
		return false
	}
}

func leave(places chan struct{}) {
	if places != nil {
		<-places
	}
}

func (p *Peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pr := &p.o.Profile
	route := strings.TrimPrefix(r.URL.Path, prefix)
	p.mu.Lock()
	p.seen[route]++
	p.mu.Unlock()
	p.inspect(route, r)
	if pr.CloseConnections {
		w.Header().Set("Connection", "close")
	}
	if pr.KeepAlive != "" {
		w.Header().Set("Keep-Alive", pr.KeepAlive)
	}
	if pr.CapabilitiesAlways {
		w.Header().Set("X-Amz-Rdma-Capabilities", pr.Capabilities)
	}
	if p.o.Hooks.Answer != nil && p.o.Hooks.Answer(w, r) {
		return
	}
	if !enter(p.threads, r) {
		return
	}
	defer leave(p.threads)
	p.reap()
	handler, known := map[string]func(http.ResponseWriter, *http.Request, string){
		"prepare": p.prepare, "ready": p.ready, "cancel": p.cancel,
	}[route]
	switch {
	case p.o.Off:
		p.refuse(w, Off)
		return
	case !known:
		p.refuse(w, UnknownPath)
		return
	}
	missing, other := NoProtocol, OtherProtocol
	if route == "prepare" {
		missing, other = PrepareNoProtocol, PrepareOtherProtocol
	}
	switch r.Header.Get("X-Amz-Rdma-Protocol") {
	case proto:
	case "":
		p.refuse(w, missing)
		return
	default:
		p.refuse(w, other)
		return
	}
	who, wrong := p.authenticate(r)
	if wrong != "" {
		p.refuse(w, wrong)
		return
	}
	handler(w, r, who)
}

// refuses tells that a situation is one for this server.
func (p *Peer) refuses(s Situation) bool {
	_, ok := p.o.Profile.Answers[s]
	return ok
}

// refuse answers as the profile says.
func (p *Peer) refuse(w http.ResponseWriter, s Situation) {
	a, ok := p.o.Profile.Answers[s]
	if !ok {
		panic(fmt.Sprintf("rctest: %s has no answer for %q", p.o.Profile.Name, s))
	}
	p.answer(w, a)
}

func (p *Peer) answer(w http.ResponseWriter, a Answer) {
	if a.Status < 300 {
		p.succeed(w, a.Status)
		return
	}
	h := w.Header()
	if a.Marker {
		h.Set("X-Amz-Rdma-Protocol-Status", "unsupported")
	}
	if p.o.Profile.ErrorEcho {
		h.Set("X-Amz-Rdma-Protocol", proto)
	}
	if !p.o.Profile.ErrorXML {
		h.Set("Content-Length", "0")
		w.WriteHeader(a.Status)
		return
	}
	h.Set("Content-Type", "application/xml")
	w.WriteHeader(a.Status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>test</Message></Error>", a.Code)
}

func (p *Peer) succeed(w http.ResponseWriter, status int) {
	body := p.o.Profile.Body
	if status == http.StatusNoContent {
		body = ""
	} else {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if body != "" {
		w.Write([]byte(body))
	}
}

func (p *Peer) digits(s string) string {
	if p.o.Profile.UpperHex {
		return strings.ToUpper(s)
	}
	return s
}
