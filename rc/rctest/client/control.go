package client

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"s3rdmafs/rc/rctest/sigv4"
	"s3rdmafs/verbs"
)

// Options of a Client. All but Edit and EditSigned are required.
type Options struct {
	Profile  Profile
	Endpoint string // URL
	Device   verbs.Device
	PD       verbs.PD
	GID      verbs.GIDEntry

	AccessKey, SecretKey, Region string
	// Deadline bounds each wait for a completion.
	Deadline time.Duration

	// Edit may change the headers of a request before it is signed, EditSigned the
	// request afterwards. route is "prepare", "ready" or "cancel".
	Edit       func(route string, h http.Header)
	EditSigned func(route string, r *http.Request)
}

// Client makes one transfer at a time.
type Client struct {
	o    Options
	host string
	http *http.Client
}

// New makes a client. Close it after its sessions.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, err
	}
	host := u.Host
	if o.Profile.Port80 {
		host = u.Hostname() + ":80"
	}
	return &Client{o: o, host: host, http: &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: o.Profile.FreshConnections},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Refusal is an answer other than success.
type Refusal struct {
	Route  string
	Status int
	Code   string // of the S3 error document
	Marker bool   // fall back to HTTP
	Header http.Header
}

func (r *Refusal) Error() string {
	marker := ""
	if r.Marker {
		marker = " marker"
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %d %s%s", r.Route, r.Status, r.Code, marker))
}

// ErrRejected is a success that the client does not take.
var ErrRejected = errors.New("answer rejected")

func rejected(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrRejected}, args...)...)
}

// Do sends a control request; a Refusal if the answer is not a success.
func (c *Client) Do(ctx context.Context, route string, h http.Header) (http.Header, error) {
	pr := &c.o.Profile
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.o.Endpoint+"/.hipobj-rc/"+route, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Host = c.host
	r.Header = h.Clone()
	if c.o.Edit != nil {
		c.o.Edit(route, r.Header)
	}
	c.sign(r, time.Now().UTC())
	if c.o.EditSigned != nil {
		c.o.EditSigned(route, r)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		refusal := &Refusal{
			Route: route, Status: resp.StatusCode, Header: resp.Header,
			Marker: resp.Header.Get("X-Amz-Rdma-Protocol-Status") == "unsupported",
		}
		var doc struct{ Code string }
		if xml.Unmarshal(body, &doc) == nil {
			refusal.Code = doc.Code
		}
		return nil, refusal
	}
	if pr.NeedLength && resp.ContentLength < 0 && resp.StatusCode != http.StatusNoContent {
		return nil, rejected("%s: no Content-Length", route)
	}
	return resp.Header, nil
}

// sign adds what section 6 asks for, as the profile does it.
func (c *Client) sign(r *http.Request, at time.Time) {
	pr := &c.o.Profile
	r.Header.Set("X-Amz-Date", at.Format(sigv4.DateFormat))
	hash := sigv4.EmptyHash
	if pr.PayloadHash != "" {
		hash = pr.PayloadHash
		r.Header.Set("X-Amz-Content-Sha256", hash)
	}
	a := sigv4.Authorization{
		AccessKey: c.o.AccessKey, Date: at.Format("20060102"), Region: c.o.Region, Service: pr.Service,
		Signed: []string{"host"},
	}
	if pr.SignContentLength {
		a.Signed = append(a.Signed, "content-length")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Amz-") {
			a.Signed = append(a.Signed, strings.ToLower(name))
		}
	}
	slices.Sort(a.Signed)
	a.Signature = a.Sum(r, hash, c.o.SecretKey)
	r.Header.Set("Authorization", a.String())
}
