package rctest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"s3rdmafs/verbs"
)

// Options of a Peer.
type Options struct {
	Device   verbs.Device
	Port     uint8
	GIDIndex int
	GID      verbs.GID
	Profile  Profile
	Hooks    Hooks
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
	o  Options
	pd verbs.PD

	mu         sync.Mutex
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
	if o.Exec == 0 {
		o.Exec = 5 * time.Second
	}
	return &Peer{
		o: o, pd: pd,
		objects:  make(map[string]Object),
		sessions: make(map[string]*session),
		seen:     make(map[string]int),
	}, nil
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

// Set stores an object under "bucket/key".
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

// Stored counts the PUTs that were stored.
func (p *Peer) Stored() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stored
}

// Violations lists what clients did that they must not do.
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

// Sessions counts the sessions that exist.
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

func (p *Peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route := strings.TrimPrefix(r.URL.Path, prefix)
	p.mu.Lock()
	p.seen[route]++
	p.mu.Unlock()
	p.inspect(route, r)
	if p.o.Profile.CloseConnections {
		w.Header().Set("Connection", "close")
	}
	if p.o.Profile.CapabilitiesAlways {
		w.Header().Set("X-Amz-Rdma-Capabilities", p.o.Profile.FinalCapabilities)
	}
	if p.o.Hooks.Answer != nil && p.o.Hooks.Answer(w, r) {
		return
	}
	if r.Header.Get("X-Amz-Rdma-Protocol") != proto {
		w.Header().Set("X-Amz-Rdma-Protocol-Status", "unsupported")
		p.fail(w, http.StatusNotImplemented, "NotImplemented")
		return
	}
	switch route {
	case "prepare":
		p.prepare(w, r)
	case "ready":
		p.ready(w, r)
	case "cancel":
		p.cancel(w, r)
	default:
		p.fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// inspect notes breaches of sections 5 and 6.
func (p *Peer) inspect(route string, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.RawQuery != "" {
		p.violation("%s: %s with query %q", route, r.Method, r.URL.RawQuery)
	}
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 || r.Header.Get("Content-Length") != "0" && r.Header.Get("Content-Length") != "" {
		p.violation("%s: not Content-Length: 0", route)
	}
	if r.Header.Get("Expect") != "" {
		p.violation("%s: Expect", route)
	}
	if got := r.Header.Get("X-Amz-Content-Sha256"); got != emptyHash {
		p.violation("%s: payload hash %q", route, got)
	}
	_, list, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	signed := make(map[string]bool)
	for name := range strings.SplitSeq(list, ";") {
		signed[name] = true
	}
	for name := range r.Header {
		lower := strings.ToLower(name)
		if (strings.HasPrefix(lower, "x-amz-") || strings.HasPrefix(lower, "if-")) && !signed[lower] {
			p.violation("%s: %s is not signed", route, name)
		}
	}
	if !signed["host"] {
		p.violation("%s: host is not signed", route)
	}
}

func credential(r *http.Request) string {
	_, c, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	c, _, _ = strings.Cut(c, "/")
	return c + " " + r.Header.Get("X-Amz-Security-Token")
}

func (p *Peer) fail(w http.ResponseWriter, status int, code string) {
	if !p.o.Profile.ErrorXML {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>test</Message></Error>", code)
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

func (p *Peer) prepare(w http.ResponseWriter, r *http.Request) {
	pr := p.o.Profile
	f := &fields{h: r.Header}
	theirs, err := decodeToken(r.Header.Get("X-Amz-Rdma-Token"))
	psn := uint32(f.hex("X-Amz-Rdma-Psn", 6, 24))
	cookie := uint32(f.hex("X-Amz-Rdma-Cookie", 8, 32))
	size := f.decimal("X-Amz-Rdma-Size")
	var offset int64
	if pr.OffsetRequired || r.Header.Get("X-Amz-Rdma-Offset") != "" {
		offset = f.decimal("X-Amz-Rdma-Offset")
	}
	op := r.Header.Get("X-Amz-Rdma-Op")
	name, query, terr := splitTarget(r.Header.Get("X-Amz-Rdma-Target"))
	if err != nil || terr != nil || f.bad != "" || psn == 0 || cookie == 0 || size == 0 || (op != "GET" && op != "PUT") {
		p.violation("prepare: malformed (%v, %v, %s)", err, terr, f.bad)
		p.fail(w, http.StatusBadRequest, "InvalidRdmaRequest")
		return
	}
	if query != "" && pr.DropQuery {
		p.violation("prepare: a query this server drops")
	}
	if query != "" && !pr.DropQuery && op == "PUT" {
		name += "?" + query
	}
	if size > 1<<31-1 {
		p.fail(w, http.StatusRequestEntityTooLarge, "EntityTooLarge")
		return
	}
	if pr.MaxEnd != 0 && offset+size > pr.MaxEnd {
		p.violation("prepare: range ends beyond %d", pr.MaxEnd)
		p.fail(w, http.StatusBadRequest, "InvalidRdmaRequest")
		return
	}
	s := &session{peer: p, op: op, name: name, cookie: cookie, psn: psn, theirs: theirs, size: size, who: credential(r)}
	if op == "GET" {
		o, ok := p.Get(name)
		switch {
		case !ok:
			p.fail(w, http.StatusNotFound, "NoSuchKey")
			return
		case offset >= int64(len(o.Data)):
			p.fail(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		case offset+size > int64(len(o.Data)):
			if pr.PastEnd != http.StatusOK {
				p.fail(w, pr.PastEnd, "InvalidRange")
				return
			}
			s.size = int64(len(o.Data)) - offset
		}
		s.data, s.etag = o.Data[offset:offset+s.size], o.ETag
	}
	p.mu.Lock()
	full := pr.MaxSessions != 0 && len(p.sessions) >= pr.MaxSessions
	p.mu.Unlock()
	if full {
		p.fail(w, pr.LimitStatus, "SlowDown")
		return
	}
	if err := s.open(); err != nil {
		s.close()
		p.fail(w, http.StatusInternalServerError, "InternalError")
		return
	}
	if pr.EarlyPairing {
		if err := s.pair(theirs.qpn); err != nil {
			s.close()
			p.fail(w, http.StatusInternalServerError, "InternalError")
			return
		}
	}
	var id [16]byte
	rand.Read(id[:])
	s.id = hex.EncodeToString(id[:])
	p.mu.Lock()
	p.sessions[s.id] = s
	p.mu.Unlock()
	h := w.Header()
	h.Set("X-Amz-Rdma-Protocol", proto)
	h.Set("X-Amz-Rdma-Session", s.id)
	h.Set("X-Amz-Rdma-Psn", p.digits(fmt.Sprintf("%06x", s.ownPSN)))
	h.Set("X-Amz-Rdma-Reply", "200:"+p.digits(end{qpn: s.qp.Num(), gid: p.o.GID, port: p.o.Port}.encode()))
	if !pr.NoQPN {
		h.Set("X-Amz-Rdma-Qpn", fmt.Sprintf("%x", s.qp.Num()))
	}
	if op == "PUT" || pr.StagingOnGet {
		h.Set("X-Amz-Rdma-Mr-Addr", fmt.Sprintf("%x", s.mr.Addr()))
		h.Set("X-Amz-Rdma-Mr-Rkey", fmt.Sprintf("%x", s.mr.RKey()))
	}
	if p.o.Hooks.PrepareHeader != nil {
		p.o.Hooks.PrepareHeader(h)
	}
	p.succeed(w, http.StatusOK)
}

// take removes a session that the request may use.
func (p *Peer) take(r *http.Request) *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[r.Header.Get("X-Amz-Rdma-Session")]
	if s != nil && s.who != credential(r) {
		p.violations = append(p.violations, "other credentials than those of PREPARE")
	}
	if s != nil {
		delete(p.sessions, s.id)
	}
	return s
}

func (p *Peer) ready(w http.ResponseWriter, r *http.Request) {
	pr := p.o.Profile
	s := p.take(r)
	if s == nil {
		p.fail(w, pr.UnknownSession, "NoSuchRdmaSession")
		return
	}
	defer s.close()
	f := &fields{h: r.Header}
	cookie := uint32(f.hex("X-Amz-Rdma-Cookie", 8, 32))
	qpn := uint32(f.hex("X-Amz-Rdma-Qpn", 0, 24))
	addr := f.hex("X-Amz-Rdma-Mr-Addr", 0, 64)
	rkey := uint32(f.hex("X-Amz-Rdma-Mr-Rkey", 0, 32))
	if f.bad != "" || cookie != s.cookie || qpn != s.theirs.qpn || (s.op == "GET") != (addr != 0 && rkey != 0) {
		p.violation("ready: malformed %s", f.bad)
		p.fail(w, http.StatusBadRequest, "InvalidRdmaRequest")
		return
	}
	if p.o.Hooks.Ready != nil {
		p.o.Hooks.Ready()
	}
	status, code := s.run(qpn, addr, rkey)
	if status != http.StatusOK {
		p.fail(w, status, code)
		return
	}
	if p.o.Hooks.BeforeFinal != nil && p.o.Hooks.BeforeFinal() {
		panic(http.ErrAbortHandler)
	}
	h := w.Header()
	h.Set("X-Amz-Rdma-Protocol", proto)
	h.Set("X-Amz-Rdma-Cookie", p.digits(fmt.Sprintf("%08x", s.cookie)))
	h.Set("X-Amz-Rdma-Bytes-Transferred", strconv.FormatInt(s.size, 10))
	if s.op == "GET" && pr.ETagOnGet || s.op == "PUT" && pr.ETagOnPut {
		h.Set("X-Amz-Rdma-Etag", s.etag)
	}
	if pr.Checksum != "" {
		h.Set(pr.Checksum, base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, crc(s.data))))
	}
	if pr.FinalCapabilities != "" {
		h.Set("X-Amz-Rdma-Capabilities", pr.FinalCapabilities)
	}
	if p.o.Hooks.FinalHeader != nil {
		p.o.Hooks.FinalHeader(h)
	}
	p.succeed(w, http.StatusOK)
}

func (p *Peer) cancel(w http.ResponseWriter, r *http.Request) {
	s := p.take(r)
	if s != nil {
		s.close()
	}
	if p.o.Hooks.Cancel != nil {
		p.o.Hooks.Cancel()
	}
	status := p.o.Profile.Cancel
	if s == nil {
		status = p.o.Profile.CancelUnknown
	}
	if status >= 400 {
		p.fail(w, status, "NoSuchRdmaSession")
		return
	}
	p.succeed(w, status)
}
