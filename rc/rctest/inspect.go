package rctest

import (
	"net/http"
	"regexp"
	"strings"

	"s3rdmafs/rc/rctest/sigv4"
)

// The values that our client sends, column "What we send" of section 3 and
// sections 7.1 and 8.1. They are narrower than what peers accept.
var sent = map[string]map[string]*regexp.Regexp{
	"prepare": {
		"X-Amz-Rdma-Token":  regexp.MustCompile(`^01[0-9a-f]{86}$`),
		"X-Amz-Rdma-Psn":    regexp.MustCompile(`^[0-9a-f]{6}$`),
		"X-Amz-Rdma-Cookie": regexp.MustCompile(`^[0-9a-f]{8}$`),
		"X-Amz-Rdma-Op":     regexp.MustCompile(`^(GET|PUT)$`),
		"X-Amz-Rdma-Target": regexp.MustCompile(`^/([A-Za-z0-9._~-]|%[0-9A-F]{2})+/([A-Za-z0-9._~/-]|%[0-9A-F]{2})+(\?[^?]+)?$`),
		"X-Amz-Rdma-Size":   regexp.MustCompile(`^[1-9][0-9]*$`),
		"X-Amz-Rdma-Offset": regexp.MustCompile(`^(0|[1-9][0-9]*)$`),
	},
	"ready": {
		"X-Amz-Rdma-Session": regexp.MustCompile(`^[0-9a-f]{32}$`),
		"X-Amz-Rdma-Cookie":  regexp.MustCompile(`^[0-9a-f]{8}$`),
		"X-Amz-Rdma-Qpn":     regexp.MustCompile(`^[1-9a-f][0-9a-f]{0,5}$`),
		"X-Amz-Rdma-Mr-Addr": regexp.MustCompile(`^(0|[1-9a-f][0-9a-f]{0,15})$`),
		"X-Amz-Rdma-Mr-Rkey": regexp.MustCompile(`^(0|[1-9a-f][0-9a-f]{0,7})$`),
	},
	"cancel": {
		"X-Amz-Rdma-Session": regexp.MustCompile(`^[0-9a-f]{32}$`),
		"X-Amz-Rdma-Cookie":  regexp.MustCompile(`^[0-9a-f]{8}$`),
	},
}

// maxHeader is what VGW takes of all headers together.
const maxHeader = 8 << 10

// inspect notes breaches of sections 3, 5, 6, 7.1 and 8.1 by our client.
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
	if got := r.Header.Get("X-Amz-Content-Sha256"); got != sigv4.EmptyHash {
		p.violation("%s: payload hash %q", route, got)
	}
	_, list, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	signed := make(map[string]bool)
	for name := range strings.SplitSeq(list, ";") {
		signed[name] = true
	}
	size := len(r.Host)
	for name, values := range r.Header {
		size += len(name) + len(": \r\n") + len(strings.Join(values, ","))
		lower := strings.ToLower(name)
		if (strings.HasPrefix(lower, "x-amz-") || strings.HasPrefix(lower, "if-")) && !signed[lower] {
			p.violation("%s: %s is not signed", route, name)
		}
	}
	if size >= maxHeader {
		p.violation("%s: %d bytes of headers", route, size)
	}
	if !signed["host"] {
		p.violation("%s: host is not signed", route)
	}
	if r.Header.Get("X-Amz-Rdma-Protocol") != proto {
		return // a probe
	}
	for name, pattern := range sent[route] {
		if v := r.Header.Values(name); len(v) != 1 || !pattern.MatchString(v[0]) {
			p.violation("%s: %s is %q", route, name, v)
		}
	}
	if r.Header.Get("X-Amz-Rdma-Op") == "PUT" && r.Header.Get("X-Amz-Rdma-Offset") != "0" {
		p.violation("%s: offset of a PUT", route)
	}
}

// credential is who signed, whether the server looks or not.
func credential(r *http.Request) string {
	_, c, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	c, _, _ = strings.Cut(c, "/")
	return c + " " + r.Header.Get("X-Amz-Security-Token")
}
