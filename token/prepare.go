package token

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

// PrepareRequest is the request of section 7.1.
type PrepareRequest struct {
	Token  Token  // of the client's end; the zero token means "your own adapter"
	PSN    uint32 // the client's send PSN, not zero
	Cookie uint32 // not zero
	Op     Op
	Target Target
	Size   int64 // bytes; with Keep the capacity of the session
	Offset int64
	Keep   bool // extension "keep"
	Extras
}

// Header is the canonical form, every x-amz-rdma-* header of it to be signed.
func (r PrepareRequest) Header() http.Header {
	h := make(http.Header)
	h.Set(HeaderProtocol, Protocol)
	h.Set(HeaderToken, r.Token.String())
	h.Set(HeaderPSN, FormatPSN(r.PSN))
	h.Set(HeaderCookie, FormatCookie(r.Cookie))
	h.Set(HeaderOp, string(r.Op))
	h.Set(HeaderTarget, r.Target.Encode())
	h.Set(HeaderSize, strconv.FormatInt(r.Size, 10))
	h.Set(HeaderOffset, strconv.FormatInt(r.Offset, 10))
	if r.Keep {
		h.Set(HeaderKeep, "1")
	}
	r.Extras.set(h)
	return h
}

// ParsePrepareRequest decodes a request as a server. It does not look at the
// protocol header (CheckProtocol does) and leaves a size above MaxSize to the
// caller, which answers it differently. Sizes and offsets beyond int64 become
// the largest int64.
func ParsePrepareRequest(h http.Header) (PrepareRequest, error) {
	var r PrepareRequest
	v, err := required(h, HeaderToken)
	if err != nil {
		return PrepareRequest{}, err
	}
	if r.Token, err = ParseRequest(v); err != nil {
		return PrepareRequest{}, err
	}
	if v, err = one(h, HeaderPSN); err != nil {
		return PrepareRequest{}, err
	}
	if r.PSN, err = ParsePSN(v); err != nil {
		return PrepareRequest{}, err
	}
	keep, err := one(h, HeaderKeep)
	if err != nil {
		return PrepareRequest{}, err
	}
	if keep != "" && keep != "1" {
		return PrepareRequest{}, syntax(HeaderKeep, "neither 1 nor absent")
	}
	r.Keep = keep == "1"
	t, err := parseTransfer(h)
	if err != nil {
		return PrepareRequest{}, err
	}
	r.Cookie, r.Op, r.Target, r.Size, r.Offset, r.Extras = t.cookie, t.op, t.target, t.size, t.offset, t.extras
	if r.Keep {
		switch {
		case r.Token.IsZero() || r.Token.QPNum == 0:
			return PrepareRequest{}, syntax(HeaderToken, "a kept session needs a token with a QP number")
		case r.Offset != 0:
			return PrepareRequest{}, syntax(HeaderOffset, "not 0 in the PREPARE of a kept session")
		case !r.Extras.isZero():
			return PrepareRequest{}, syntax(HeaderKeep, "conditions, metadata and checksum belong to NEXT")
		}
	}
	return r, nil
}

// transfer are the headers that PREPARE and NEXT have in common.
type transfer struct {
	cookie       uint32
	op           Op
	target       Target
	size, offset int64
	extras       Extras
}

func parseTransfer(h http.Header) (transfer, error) {
	var t transfer
	v, err := one(h, HeaderCookie)
	if err != nil {
		return transfer{}, err
	}
	if t.cookie, err = ParseCookie(v); err != nil {
		return transfer{}, err
	}
	if v, err = one(h, HeaderOp); err != nil {
		return transfer{}, err
	}
	if t.op, err = ParseOp(v); err != nil {
		return transfer{}, err
	}
	if v, err = required(h, HeaderTarget); err != nil {
		return transfer{}, err
	}
	if t.target, err = ParseTarget(v); err != nil {
		return transfer{}, err
	}
	if v, err = one(h, HeaderSize); err != nil {
		return transfer{}, err
	}
	if t.size, err = clamped(HeaderSize, v); err != nil {
		return transfer{}, err
	}
	if t.size == 0 {
		return transfer{}, syntax(HeaderSize, "zero")
	}
	if v, err = one(h, HeaderOffset); err != nil {
		return transfer{}, err
	}
	if v != "" { // HIP-lib leaves a zero offset out
		if t.offset, err = clamped(HeaderOffset, v); err != nil {
			return transfer{}, err
		}
	}
	if t.op == OpPut && t.offset != 0 {
		return transfer{}, syntax(HeaderOffset, "not 0 for a PUT")
	}
	t.extras, err = parseExtras(h, t.op, t.target)
	return t, err
}

// PrepareResponse is the answer of section 7.4.
type PrepareResponse struct {
	Token        Token  // of the server's end
	Session      string // 32 hex digits
	PSN          uint32 // the server's send PSN
	QPN          uint32 // equal to Token.QPNum
	MRAddr       uint64 // staging buffer; 0 for GET
	MRRKey       uint32
	Keep         time.Duration // idle limit of a kept session, whole seconds; 0 when not kept
	Capabilities Capabilities
}

// Header is the canonical form.
func (r PrepareResponse) Header() http.Header {
	h := make(http.Header)
	h.Set(HeaderProtocol, Protocol)
	h.Set(HeaderReply, r.Token.Reply())
	h.Set(HeaderSession, r.Session)
	h.Set(HeaderPSN, FormatPSN(r.PSN))
	h.Set(HeaderQPN, hexText(uint64(r.QPN)))
	if r.MRAddr != 0 || r.MRRKey != 0 {
		h.Set(HeaderMRAddr, hexText(r.MRAddr))
		h.Set(HeaderMRRKey, hexText(uint64(r.MRRKey)))
	}
	if r.Keep > 0 {
		h.Set(HeaderKeep, strconv.FormatInt(int64(r.Keep/time.Second), 10))
	}
	setCapabilities(h, r.Capabilities)
	return h
}

// ParsePrepareResponse makes the checks of section 7.5 on the headers of an
// answer with status 200 to a PREPARE of op. When it fails, the result still
// carries the session id if there was a valid one, for CANCEL. For a GET the
// staging headers are optional.
func ParsePrepareResponse(h http.Header, op Op) (PrepareResponse, error) {
	var r PrepareResponse
	v, err := one(h, HeaderSession)
	if err != nil {
		return PrepareResponse{}, err
	}
	if r.Session, err = ParseSession(v); err != nil {
		return PrepareResponse{}, err
	}
	failed := func(err error) (PrepareResponse, error) {
		return PrepareResponse{Session: r.Session}, err
	}
	if err := checkEcho(h); err != nil {
		return failed(err)
	}
	if v, err = one(h, HeaderReply); err != nil {
		return failed(err)
	}
	if r.Token, err = ParseReply(v); err != nil {
		return failed(err)
	}
	if r.Token.IsZero() || r.Token.QPNum == 0 {
		return failed(syntax(HeaderReply, "no transport"))
	}
	if v, err = one(h, HeaderPSN); err != nil {
		return failed(err)
	}
	if r.PSN, err = ParseReplyPSN(v); err != nil {
		return failed(err)
	}
	r.QPN = r.Token.QPNum
	if v, err = one(h, HeaderQPN); err != nil {
		return failed(err)
	}
	if v != "" {
		qpn, err := ParseReplyQPN(v)
		if err != nil {
			return failed(err)
		}
		if qpn != r.QPN {
			return failed(syntax(HeaderQPN, "differs from the token"))
		}
	}
	if r.MRAddr, r.MRRKey, err = parseBuffer(h, 8); err != nil && op == OpPut {
		return failed(err)
	}
	if op == OpPut && (r.MRAddr == 0 || r.MRRKey == 0) {
		return failed(syntax(HeaderMRAddr, "no staging buffer"))
	}
	if v, err = one(h, HeaderKeep); err == nil && v != "" {
		seconds, err := decimal(HeaderKeep, v)
		if err != nil || seconds == 0 || seconds > math.MaxUint32 {
			return failed(syntax(HeaderKeep, "not a number of seconds"))
		}
		r.Keep = time.Duration(seconds) * time.Second
	}
	r.Capabilities = CapabilitiesOf(h)
	return r, nil
}

// parseBuffer reads address and key; absent ones are 0, malformed ones an error
// and 0.
func parseBuffer(h http.Header, maxKeyDigits int) (addr uint64, rkey uint32, err error) {
	a, err := one(h, HeaderMRAddr)
	if err != nil {
		return 0, 0, err
	}
	k, err := one(h, HeaderMRRKey)
	if err != nil {
		return 0, 0, err
	}
	if a == "" || k == "" {
		return 0, 0, nil
	}
	if addr, err = parseAddr(a); err != nil {
		return 0, 0, err
	}
	key, err := hexValue(HeaderMRRKey, k, 1, maxKeyDigits, 0, math.MaxUint32)
	if err != nil {
		return 0, 0, err
	}
	return addr, uint32(key), nil
}
