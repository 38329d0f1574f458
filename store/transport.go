package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxControlBody bounds answers that are read whole before they are judged.
const maxControlBody = 1 << 20

// newTransport is tuned for few long-lived connections to one host. It never
// asks for compression, so stored bytes arrive as they are, and sends no Expect.
// Answers have no header timeout here: each try has its own deadline, since a
// copy may take minutes where a HEAD takes milliseconds.
func newTransport(maxConns int) *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        maxConns,
		MaxIdleConnsPerHost: maxConns,
		MaxConnsPerHost:     maxConns,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		ForceAttemptHTTP2:   false,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      16 << 10,
	}
}

// invalidHeader begins net/http's refusal of a header that cannot be sent, such as
// metadata with a line break.
const invalidHeader = "net/http: invalid header "

// guard judges answers before minio-go sees them, where it would believe them.
type guard struct{ base http.RoundTripper }

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	requestSent(req.Context())
	resp, err := g.base.RoundTrip(req)
	if err != nil && strings.HasPrefix(err.Error(), invalidHeader) {
		err = notSentError{err}
	}
	if err != nil {
		return nil, err
	}
	switch {
	case req.Method == http.MethodGet && req.Header.Get("Range") != "" && resp.StatusCode/100 == 2:
		err = checkRange(req, resp)
	case resp.StatusCode == http.StatusOK && answersLate(req):
		err = unwrapLateError(resp)
	case resp.StatusCode == http.StatusNotFound && req.Method != http.MethodHead:
		err = checkNotFound(resp)
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// checkRange holds a partial answer against the range asked for.
func checkRange(req *http.Request, resp *http.Response) error {
	want := req.Header.Get("Range")
	if resp.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("%w: status %d to %s", ErrBadAnswer, resp.StatusCode, want)
	}
	var first, last int64
	if _, err := fmt.Sscanf(want, "bytes=%d-%d", &first, &last); err != nil {
		return fmt.Errorf("range %q: %w", want, err)
	}
	got, _, ok := parseContentRange(resp.Header.Get("Content-Range"))
	if !ok || got != (byteRange{first, last}) {
		return fmt.Errorf("%w: %q to %s", ErrBadAnswer, resp.Header.Get("Content-Range"), want)
	}
	if n := last - first + 1; resp.ContentLength >= 0 && resp.ContentLength != n {
		return fmt.Errorf("%w: %d bytes to %s", ErrBadAnswer, resp.ContentLength, want)
	}
	return nil
}

type byteRange struct{ first, last int64 }

// parseContentRange reads "bytes first-last/size"; size is -1 for "*".
func parseContentRange(s string) (r byteRange, size int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, total, ok2 := strings.Cut(s, "/")
	a, b, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return r, 0, false
	}
	var err1, err2, err3 error
	r.first, err1 = strconv.ParseInt(a, 10, 64)
	r.last, err2 = strconv.ParseInt(b, 10, 64)
	size = -1
	if total != "*" {
		size, err3 = strconv.ParseInt(total, 10, 64)
	}
	return r, size, err1 == nil && err2 == nil && err3 == nil
}

// answersLate is true for requests whose status S3 sends before it knows it.
func answersLate(req *http.Request) bool {
	return req.Method == http.MethodPut && req.Header.Get("X-Amz-Copy-Source") != "" ||
		req.Method == http.MethodPost && req.URL.Query().Has("uploadId")
}

// unwrapLateError gives a 200 with an error in its body the status it deserves.
func unwrapLateError(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxControlBody))
	if err != nil {
		return err
	}
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if isErrorXML(body) {
		resp.StatusCode = http.StatusInternalServerError
		resp.Status = "500 Internal Server Error (sent as 200)"
	}
	return nil
}

// checkNotFound lets only S3's own 404 pass: one of a proxy on the way says nothing
// about the object.
func checkNotFound(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxControlBody))
	if err != nil {
		return err
	}
	if !isErrorXML(body) {
		return fmt.Errorf("%w: 404 that is not from S3", ErrBadAnswer)
	}
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// isErrorXML reports whether the root element is S3's Error.
func isErrorXML(body []byte) bool {
	rest := bytes.TrimSpace(body)
	if bytes.HasPrefix(rest, []byte("<?xml")) {
		_, after, ok := bytes.Cut(rest, []byte("?>"))
		if !ok {
			return false
		}
		rest = bytes.TrimSpace(after)
	}
	return bytes.HasPrefix(rest, []byte("<Error>")) || bytes.HasPrefix(rest, []byte("<Error "))
}

// withContext sends requests of a minio call that takes no context under ctx.
type withContext struct {
	ctx  context.Context
	base http.RoundTripper
}

func (w withContext) RoundTrip(req *http.Request) (*http.Response, error) {
	return w.base.RoundTrip(req.WithContext(w.ctx))
}
