package token

import (
	"math"
	"net/http"
	"strconv"
)

// NextRequest asks for one transfer of a kept session (extension "keep").
type NextRequest struct {
	Session string
	Seq     uint32 // 1 for the first of the session, then one more each time
	Cookie  uint32 // fresh for each transfer, not zero
	Op      Op
	Target  Target
	Size    int64  // bytes, at most the session's capacity
	Offset  int64  // 0 for PUT
	MRAddr  uint64 // GET: destination; PUT: 0
	MRRKey  uint32
	Extras
}

// Header is the canonical form, every x-amz-rdma-* header of it to be signed.
func (r NextRequest) Header() http.Header {
	h := make(http.Header)
	h.Set(HeaderProtocol, Protocol)
	h.Set(HeaderSession, r.Session)
	h.Set(HeaderSeq, strconv.FormatUint(uint64(r.Seq), 10))
	h.Set(HeaderCookie, FormatCookie(r.Cookie))
	h.Set(HeaderOp, string(r.Op))
	h.Set(HeaderTarget, r.Target.Encode())
	h.Set(HeaderSize, strconv.FormatInt(r.Size, 10))
	h.Set(HeaderOffset, strconv.FormatInt(r.Offset, 10))
	h.Set(HeaderMRAddr, hexText(r.MRAddr))
	h.Set(HeaderMRRKey, hexText(uint64(r.MRRKey)))
	r.Extras.set(h)
	return h
}

// ParseNextRequest decodes a request as a server. A GET without destination is
// malformed; a size above the session's capacity is left to the caller.
func ParseNextRequest(h http.Header) (NextRequest, error) {
	var r NextRequest
	v, err := one(h, HeaderSession)
	if err != nil {
		return NextRequest{}, err
	}
	if r.Session, err = ParseSession(v); err != nil {
		return NextRequest{}, err
	}
	if v, err = one(h, HeaderSeq); err != nil {
		return NextRequest{}, err
	}
	seq, err := decimal(HeaderSeq, v)
	if err != nil {
		return NextRequest{}, err
	}
	if seq == 0 || seq > math.MaxUint32 {
		return NextRequest{}, syntax(HeaderSeq, "not in 1 to 4294967295")
	}
	r.Seq = uint32(seq)
	for _, name := range []string{HeaderOffset, HeaderMRAddr, HeaderMRRKey} {
		if _, err := required(h, name); err != nil {
			return NextRequest{}, err
		}
	}
	t, err := parseTransfer(h)
	if err != nil {
		return NextRequest{}, err
	}
	r.Cookie, r.Op, r.Target, r.Size, r.Offset, r.Extras = t.cookie, t.op, t.target, t.size, t.offset, t.extras
	if r.MRAddr, r.MRRKey, err = parseBuffer(h, 16); err != nil {
		return NextRequest{}, err
	}
	if r.Op == OpGet && (r.MRAddr == 0 || r.MRRKey == 0) {
		return NextRequest{}, syntax(HeaderMRAddr, "GET without destination")
	}
	return r, nil
}
