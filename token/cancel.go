package token

import "net/http"

// CancelRequest is the request of section 9.
type CancelRequest struct {
	Session string
	Cookie  uint32 // sent for the peers' logs, required by nobody
}

// Header is the canonical form, every x-amz-rdma-* header of it to be signed.
func (r CancelRequest) Header() http.Header {
	h := make(http.Header)
	h.Set(HeaderProtocol, Protocol)
	h.Set(HeaderSession, r.Session)
	h.Set(HeaderCookie, FormatCookie(r.Cookie))
	return h
}

// ParseCancelRequest decodes a request as a server; the cookie is not looked at
// and 0 in the result.
func ParseCancelRequest(h http.Header) (CancelRequest, error) {
	v, err := one(h, HeaderSession)
	if err != nil {
		return CancelRequest{}, err
	}
	session, err := ParseSession(v)
	return CancelRequest{Session: session}, err
}
