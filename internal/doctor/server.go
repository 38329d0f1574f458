package doctor

import (
	"context"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"s3rdmafs/store"
	"s3rdmafs/token"
)

const (
	// maxSkew is what SigV4 allows, warnSkew what a healthy clock never reaches.
	maxSkew  = 15 * time.Minute
	warnSkew = 5 * time.Minute
	// certWarn is how long before its end a certificate is spoken of.
	certWarn = 14 * 24 * time.Hour
	maxBody  = 64 << 10
	// probeProtocol is known to no server, so a PREPARE with it does nothing
	// (section 17.1).
	probeProtocol = "hipobj-rc-probe"
)

func (r *run) address() string {
	port := r.config.Endpoint.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[r.config.Endpoint.Scheme]
	}
	return net.JoinHostPort(r.config.Endpoint.Hostname(), port)
}

// connect opens a TCP connection and, for https, TLS on it.
func (r *run) connect(ctx context.Context) {
	if len(r.addrs) == 0 {
		r.add(Check{Group: groupNetwork, Name: "connect", Status: Skip, Fact: "no address"})
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	start := time.Now()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.address())
	took := time.Since(start)
	if err != nil {
		c := Check{Group: groupNetwork, Name: "connect", Status: Fail, Fact: err.Error()}
		c.Remedy = "is the server running and listening on that port? firewall? the port in --endpoint?"
		if r.report.Find("proxy") != nil {
			c.Status, c.Remedy = Warn, "RDMA needs a direct connection; HTTP may work through the proxy: "+c.Remedy
			r.reachable = true
		}
		r.add(c)
		return
	}
	defer conn.Close()
	r.reachable = true
	r.add(Check{Group: groupNetwork, Name: "connect", Status: OK, Fact: fmt.Sprintf("TCP to %s in %s", conn.RemoteAddr(), millis(took))})
	if r.config.Endpoint.Scheme == "https" {
		r.handshake(ctx, conn)
	}
}

func (r *run) handshake(ctx context.Context, conn net.Conn) {
	c := Check{Group: groupNetwork, Name: "tls", Status: OK}
	t := tls.Client(conn, &tls.Config{ServerName: r.config.Endpoint.Hostname()})
	start := time.Now()
	if err := t.HandshakeContext(ctx); err != nil {
		r.reachable = false
		c.Status, c.Fact = Fail, err.Error()
		var verification *tls.CertificateVerificationError
		var record tls.RecordHeaderError
		switch {
		case errors.As(err, &verification):
			c.Remedy = "add the CA to the system's store or name it by SSL_CERT_FILE; the certificate must be for the name in --endpoint"
		case errors.As(err, &record):
			c.Remedy = "the server does not speak TLS on this port: use http:// in --endpoint"
		default:
			c.Remedy = "is this a TLS port? a proxy between?"
		}
		r.add(c)
		return
	}
	state := t.ConnectionState()
	cert := state.PeerCertificates[0]
	c.Fact = fmt.Sprintf("%s in %s, certificate of %s valid until %s",
		tls.VersionName(state.Version), millis(time.Since(start)), cert.Issuer.CommonName, cert.NotAfter.Format(time.DateOnly))
	if time.Until(cert.NotAfter) < certWarn {
		c.Status, c.Remedy = Warn, "renew the server's certificate"
	}
	r.add(c)
}

// httpClient asks the endpoint as RDMA control requests do: without redirects.
func (r *run) httpClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       r.o.Timeout,
	}
}

// ask sends a request and reads the answer's body, which it returns cut to maxBody.
func (r *run) ask(req *http.Request) (*http.Response, []byte, error) {
	resp, err := r.httpClient().Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	return resp, body, err
}

// clock compares this machine's clock with the server's.
func (r *run) clock(ctx context.Context) {
	c := Check{Group: groupNetwork, Name: "clock", Status: OK}
	if !r.reachable {
		c.Status, c.Fact = Skip, "the server cannot be asked"
		r.add(c)
		return
	}
	u := *r.config.Endpoint
	u.Path = "/"
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u.String(), nil)
	if err != nil {
		c.Status, c.Fact, c.Remedy = Fail, err.Error(), "check --endpoint"
		r.add(c)
		return
	}
	sent := time.Now()
	resp, _, err := r.ask(req)
	got := time.Now()
	if err != nil {
		c.Status, c.Fact = Fail, "no answer to a request: "+err.Error()
		c.Remedy = "is this an S3 server? http or https?"
		if strings.Contains(err.Error(), "HTTP response to HTTPS") {
			c.Remedy = "the server does not speak TLS: use http:// in --endpoint"
		}
		r.reachable = false
		r.add(c)
		return
	}
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		c.Status, c.Fact = Warn, "the server does not tell its time"
		c.Remedy = "is this an S3 server? compare the clocks by hand"
		r.add(c)
		return
	}
	// The header is cut to seconds.
	skew := date.Add(500 * time.Millisecond).Sub(sent.Add(got.Sub(sent) / 2))
	c.Fact, c.Status = skewFact(skew)
	c.Remedy = "set the clock (chronyc makestep, timedatectl set-ntp true) on the side that is wrong: signatures more than 15 minutes apart are refused"
	r.add(c)
}

func skewFact(skew time.Duration) (string, Status) {
	abs := skew.Abs()
	side := "ahead of"
	if skew < 0 {
		side = "behind"
	}
	switch fact := fmt.Sprintf("the server is %s %s this machine", abs.Round(time.Second), side); {
	case abs < 2*time.Second:
		return "the same as the server's", OK
	case abs > maxSkew:
		return fact, Fail
	case abs > warnSkew:
		return fact, Warn
	default:
		return fact, OK
	}
}

// credentials finds those that requests will be signed with.
func (r *run) credentials(ctx context.Context) {
	c := Check{Group: groupServer, Name: "credentials", Status: OK}
	ctx, cancel := context.WithTimeout(ctx, 2*r.o.Timeout)
	defer cancel()
	v, err := r.config.Retrieve(ctx)
	if err != nil {
		c.Status, c.Fact = Fail, err.Error()
		c.Remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials (--profile)"
		r.add(c)
		return
	}
	r.creds = &token.Credentials{AccessKey: v.AccessKeyID, SecretKey: v.SecretAccessKey, SessionToken: v.SessionToken}
	c.Fact = fmt.Sprintf("from %s, access key %s", r.config.CredentialsSource(), masked(v.AccessKeyID))
	if v.SessionToken != "" {
		c.Fact += ", with session token"
	}
	switch left := time.Until(v.Expiration); {
	case v.Expiration.IsZero():
		c.Fact += ", no expiry"
	case left <= 0:
		c.Status, c.Fact = Fail, c.Fact+", expired "+v.Expiration.Format(time.RFC3339)
		c.Remedy = "get new ones from where these came from"
	default:
		c.Fact += fmt.Sprintf(", until %s (%s)", v.Expiration.Format(time.RFC3339), left.Round(time.Minute))
		if left < maxSkew {
			c.Status = Warn
			c.Remedy = "roles are renewed by themselves; keys in files or the environment must be replaced there"
		}
	}
	r.add(c)
}

// masked shows the end of an access key, enough to tell two apart.
func masked(key string) string {
	if len(key) <= 8 {
		return "…"
	}
	return "…" + key[len(key)-4:]
}

// spoken is what is known about the server's protocol.
type spoken int

const (
	spokenUnknown spoken = iota
	spokenNo
	spokenYes
)

const serverRemedy = "start the server with RDMA (s3rdmagw; versitygw: vgwrdma --rdma-rc-enable), or accept HTTP with --rdma off"

// probe sends the side-effect-free PREPARE of section 17.1.
func (r *run) probe(ctx context.Context) {
	c := Check{Group: groupServer, Name: "protocol", Status: Skip}
	switch {
	case !r.reachable:
		c.Fact = "the server cannot be asked"
	case r.creds == nil:
		c.Fact = "no credentials to ask with"
	default:
		c = r.askProtocol(ctx)
	}
	r.add(c)
}

func (r *run) askProtocol(ctx context.Context) Check {
	c := Check{Group: groupServer, Name: "protocol", Status: OK, Remedy: serverRemedy}
	u := *r.config.Endpoint
	u.Path = token.PathPrepare
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), nil)
	if err == nil {
		req.Header.Set(token.HeaderProtocol, probeProtocol)
		err = token.Sign(req, *r.creds, r.config.Region, "s3", time.Now())
	}
	if err != nil {
		c.Status, c.Fact = Fail, err.Error()
		return c
	}
	start := time.Now()
	resp, body, err := r.ask(req)
	if err != nil {
		c.Status, c.Fact = r.withoutRDMA(), "no answer to PREPARE: "+err.Error()
		return c
	}
	took := millis(time.Since(start))
	var doc struct{ Code string }
	_ = xml.Unmarshal(body, &doc) // an answer without S3's document has no code
	answer := fmt.Sprintf("%d %s", resp.StatusCode, doc.Code)
	r.caps = token.CapabilitiesOf(resp.Header)
	switch {
	case r.caps != 0:
		r.spoken = spokenYes
		c.Fact = fmt.Sprintf("hipobj-rc-v2, capabilities %s (%s)", r.caps, took)
	case resp.StatusCode == http.StatusNotImplemented && token.IsMarker(resp.Header):
		r.spoken = spokenYes
		c.Fact = fmt.Sprintf("knows hipobj-rc-v2, tells no capabilities (%s); whether RDMA is on there shows with a bucket", took)
	case doc.Code == "InvalidRdmaRequest":
		r.spoken = spokenYes
		c.Fact = fmt.Sprintf("hipobj-rc-v2 as versitygw speaks it, no capabilities (%s)", took)
	case resp.StatusCode == http.StatusForbidden:
		c.Status, c.Fact = r.withoutRDMA(), "the server refuses the signature before it tells: "+answer
		c.Remedy = "see credentials and access"
	case resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented:
		c.Status, c.Fact = r.withoutRDMA(), "no usable answer to PREPARE: "+answer
		c.Remedy = "look into the server's log"
	default:
		r.spoken = spokenNo
		c.Status, c.Fact = r.withoutRDMA(), fmt.Sprintf("does not speak hipobj-rc-v2 (PREPARE: %s)", answer)
	}
	if r.o.RDMA == store.ModeOff {
		c.Fact += "; RDMA is switched off"
	}
	return c
}
