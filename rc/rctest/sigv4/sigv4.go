package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// EmptyHash is the SHA-256 of no bytes.
const EmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// DateFormat is the layout of X-Amz-Date.
const DateFormat = "20060102T150405Z"

const algorithm = "AWS4-HMAC-SHA256"

// Authorization is the header of that name.
type Authorization struct {
	AccessKey             string
	Date, Region, Service string // of the credential scope
	Signed                []string
	Signature             string
}

// Parse reads an Authorization header.
func Parse(s string) (Authorization, error) {
	var a Authorization
	s, ok := strings.CutPrefix(s, algorithm+" ")
	if !ok {
		return a, errors.New("sigv4: other algorithm")
	}
	fields := make(map[string]string)
	for field := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[name] = value
	}
	scope := strings.Split(fields["Credential"], "/")
	if len(scope) != 5 || scope[4] != "aws4_request" {
		return a, errors.New("sigv4: malformed credential")
	}
	a.AccessKey, a.Date, a.Region, a.Service = scope[0], scope[1], scope[2], scope[3]
	a.Signed = strings.Split(fields["SignedHeaders"], ";")
	a.Signature = fields["Signature"]
	return a, nil
}

// String is the value of the header.
func (a Authorization) String() string {
	return algorithm + " Credential=" + a.AccessKey + "/" + a.scope() +
		", SignedHeaders=" + strings.Join(a.Signed, ";") + ", Signature=" + a.Signature
}

func (a Authorization) scope() string {
	return strings.Join([]string{a.Date, a.Region, a.Service, "aws4_request"}, "/")
}

// Sum computes the signature of r with the scope and signed headers of a. The
// payload hash is not taken from r. r may be a request to send or one received.
func (a Authorization) Sum(r *http.Request, payloadHash, secret string) string {
	signed := slices.Sorted(slices.Values(a.Signed))
	var canonical strings.Builder
	canonical.WriteString(r.Method + "\n" + r.URL.EscapedPath() + "\n" + r.URL.RawQuery + "\n")
	for _, name := range signed {
		canonical.WriteString(name + ":" + value(r, name) + "\n")
	}
	canonical.WriteString("\n" + strings.Join(signed, ";") + "\n" + payloadHash)
	sum := sha256.Sum256([]byte(canonical.String()))
	text := strings.Join([]string{algorithm, r.Header.Get("X-Amz-Date"), a.scope(), hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + secret)
	for _, part := range []string{a.Date, a.Region, a.Service, "aws4_request", text} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}

// value is what a header is signed with; net/http keeps some apart from the others.
func value(r *http.Request, name string) string {
	switch name {
	case "host":
		if r.Host != "" {
			return r.Host
		}
		return r.URL.Host
	case "content-length":
		return strconv.FormatInt(r.ContentLength, 10)
	}
	var values []string
	for _, v := range r.Header.Values(name) {
		values = append(values, strings.Join(strings.Fields(v), " "))
	}
	return strings.Join(values, ",")
}
