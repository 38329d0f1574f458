package token

import (
	"math"
	"net/http"
	"strconv"
	"strings"
)

// ReadyRequest is the request of section 8.1.
type ReadyRequest struct {
	Session           string // byte for byte as received
	Cookie            uint32
	QPN               uint32 // the client's
	MRAddr            uint64 // GET: destination; PUT: 0
	MRRKey            uint32
	ChecksumAlgorithm string
}

// Header is the canonical form, every x-amz-rdma-* header of it to be signed.
func (r ReadyRequest) Header() http.Header {
	h := make(http.Header)
	h.Set(HeaderProtocol, Protocol)
	h.Set(HeaderSession, r.Session)
	h.Set(HeaderCookie, FormatCookie(r.Cookie))
	h.Set(HeaderQPN, hexText(uint64(r.QPN)))
	h.Set(HeaderMRAddr, hexText(r.MRAddr))
	h.Set(HeaderMRRKey, hexText(uint64(r.MRRKey)))
	if r.ChecksumAlgorithm != "" {
		h.Set(HeaderChecksumAlgorithm, r.ChecksumAlgorithm)
	}
	return h
}

// ParseReadyRequest decodes a request as a server. Malformed address and key
// headers count as absent, since they must be ignored on PUT and are refused as
// missing on GET.
func ParseReadyRequest(h http.Header) (ReadyRequest, error) {
	var r ReadyRequest
	v, err := one(h, HeaderSession)
	if err != nil {
		return ReadyRequest{}, err
	}
	if r.Session, err = ParseSession(v); err != nil {
		return ReadyRequest{}, err
	}
	if v, err = one(h, HeaderCookie); err != nil {
		return ReadyRequest{}, err
	}
	if r.Cookie, err = ParseCookie(v); err != nil {
		return ReadyRequest{}, err
	}
	if v, err = one(h, HeaderQPN); err != nil {
		return ReadyRequest{}, err
	}
	if r.QPN, err = ParseQPN(v); err != nil {
		return ReadyRequest{}, err
	}
	if addr, rkey, err := parseBuffer(h, 16); err == nil {
		r.MRAddr, r.MRRKey = addr, rkey
	}
	r.ChecksumAlgorithm, err = parseAlgorithm(h)
	return r, err
}

// Final is the answer to READY and NEXT with status 200 (section 8.3).
type Final struct {
	Cookie       uint32
	Bytes        int64  // delivered (GET) or stored (PUT)
	ETag         string // without quotes, "" when unknown
	VersionID    string // "" when not versioned
	CRC64        uint64 // of the transferred bytes, valid with HasCRC64
	HasCRC64     bool
	Capabilities Capabilities
}

// maxIdent is the longest ETag or version id that peers take.
const maxIdent = 127

// Header is the canonical form. ETags and version ids that no peer would take are
// left out.
func (f Final) Header() http.Header {
	h := make(http.Header)
	h.Set(HeaderProtocol, Protocol)
	h.Set(HeaderCookie, FormatCookie(f.Cookie))
	h.Set(HeaderBytes, strconv.FormatInt(f.Bytes, 10))
	if _, err := text(HeaderETag, f.ETag, maxIdent-2); err == nil && f.ETag != "" {
		h.Set(HeaderETag, QuoteETag(f.ETag))
	}
	if _, err := text(HeaderVersionID, f.VersionID, maxIdent); err == nil && f.VersionID != "" {
		h.Set(HeaderVersionID, f.VersionID)
	}
	if f.HasCRC64 {
		h.Set(HeaderChecksum, FormatChecksum(f.CRC64))
	}
	setCapabilities(h, f.Capabilities)
	return h
}

// ParseFinal decodes the headers of a success as a client. It does not know the
// cookie and size that were asked for; comparing them is left to the caller.
func ParseFinal(h http.Header) (Final, error) {
	var f Final
	if err := checkEcho(h); err != nil {
		return Final{}, err
	}
	v, err := one(h, HeaderCookie)
	if err != nil {
		return Final{}, err
	}
	if f.Cookie, err = ParseReplyCookie(v); err != nil {
		return Final{}, err
	}
	if v, err = one(h, HeaderBytes); err != nil {
		return Final{}, err
	}
	n, err := decimal(HeaderBytes, v)
	if err != nil {
		return Final{}, err
	}
	if n > math.MaxInt64 {
		return Final{}, syntax(HeaderBytes, "too large")
	}
	f.Bytes = int64(n)
	if v, err = one(h, HeaderETag); err != nil {
		return Final{}, err
	}
	if v, err = text(HeaderETag, v, maxIdent); err != nil {
		return Final{}, err
	}
	f.ETag = UnquoteETag(v)
	if v, err = one(h, HeaderVersionID); err == nil && v == "" {
		v, err = one(h, HeaderS3VersionID)
	}
	if err != nil {
		return Final{}, err
	}
	if f.VersionID, err = text(HeaderVersionID, v, maxIdent); err != nil {
		return Final{}, err
	}
	if v, err = one(h, HeaderChecksum); err != nil {
		return Final{}, err
	}
	// Another algorithm's checksum is of no use here, but no mistake either.
	if strings.HasPrefix(v, "CRC32C ") {
		v = ""
	}
	if v != "" {
		if f.CRC64, err = ParseChecksum(v); err != nil {
			return Final{}, err
		}
		f.HasCRC64 = true
	} else if v, err = one(h, HeaderChecksumCRC64); err != nil {
		return Final{}, err
	} else if v != "" {
		if f.CRC64, err = parseCRC64(HeaderChecksumCRC64, v); err != nil {
			return Final{}, err
		}
		f.HasCRC64 = true
	}
	f.Capabilities = CapabilitiesOf(h)
	return f, nil
}
