package token

import "net/http"

const maxContentType = 255

// Extras are what the extensions "cond", "meta" and "crc" add to PREPARE and
// NEXT.
type Extras struct {
	IfMatch           string            // ETag without quotes, "*", or "" for none
	IfNoneMatch       string            // "*" or "" for none
	ContentType       string            // of a PUT, "" for none
	Meta              map[string]string // of a PUT, names without x-amz-meta-; nil for none
	ChecksumAlgorithm string            // AlgorithmCRC64NVME or "" for none
}

func (e Extras) isZero() bool {
	return e.IfMatch == "" && e.IfNoneMatch == "" && e.ContentType == "" && e.Meta == nil && e.ChecksumAlgorithm == ""
}

func (e Extras) set(h http.Header) {
	switch e.IfMatch {
	case "":
	case "*":
		h.Set(HeaderIfMatch, "*")
	default:
		h.Set(HeaderIfMatch, QuoteETag(e.IfMatch))
	}
	if e.IfNoneMatch != "" {
		h.Set(HeaderIfNoneMatch, e.IfNoneMatch)
	}
	if e.ContentType != "" {
		h.Set(HeaderContentType, e.ContentType)
	}
	if len(e.Meta) > 0 {
		h.Set(HeaderMeta, FormatMeta(e.Meta))
	}
	if e.ChecksumAlgorithm != "" {
		h.Set(HeaderChecksumAlgorithm, e.ChecksumAlgorithm)
	}
}

// parseExtras also checks what op and target rule out.
func parseExtras(h http.Header, op Op, target Target) (Extras, error) {
	var e Extras
	match, err := one(h, HeaderIfMatch)
	if err != nil {
		return Extras{}, err
	}
	if match != "" {
		if e.IfMatch, err = parseIfMatch(match); err != nil {
			return Extras{}, err
		}
	}
	if e.IfNoneMatch, err = one(h, HeaderIfNoneMatch); err != nil {
		return Extras{}, err
	}
	if e.IfNoneMatch != "" && e.IfNoneMatch != "*" {
		return Extras{}, syntax(HeaderIfNoneMatch, "only * is supported")
	}
	if e.ContentType, err = one(h, HeaderContentType); err != nil {
		return Extras{}, err
	}
	if e.ContentType, err = text(HeaderContentType, e.ContentType, maxContentType); err != nil {
		return Extras{}, err
	}
	meta, err := one(h, HeaderMeta)
	if err != nil {
		return Extras{}, err
	}
	if meta != "" {
		if e.Meta, err = ParseMeta(meta); err != nil {
			return Extras{}, err
		}
	}
	if e.ChecksumAlgorithm, err = parseAlgorithm(h); err != nil {
		return Extras{}, err
	}
	bare := op == OpGet || target.PartNumber != 0 || target.UploadID != ""
	switch {
	case e.IfNoneMatch != "" && (bare || e.IfMatch != ""):
		return Extras{}, syntax(HeaderIfNoneMatch, "not allowed here")
	case e.IfMatch != "" && bare && op == OpPut:
		return Extras{}, syntax(HeaderIfMatch, "not allowed for a part")
	case e.ContentType != "" && bare:
		return Extras{}, syntax(HeaderContentType, "only for the PUT of an object")
	case e.Meta != nil && bare:
		return Extras{}, syntax(HeaderMeta, "only for the PUT of an object")
	}
	return e, nil
}

func parseIfMatch(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	etag := UnquoteETag(s)
	if etag == s || etag == "" || etag == "*" {
		return "", syntax(HeaderIfMatch, "not one ETag in quotes")
	}
	for i := range len(etag) {
		if etag[i] <= 0x20 || etag[i] > 0x7e || etag[i] == '"' {
			return "", syntax(HeaderIfMatch, "not one ETag in quotes")
		}
	}
	return etag, nil
}

// parseAlgorithm keeps unknown names: asking for a checksum is a wish that the
// server need not fulfil.
func parseAlgorithm(h http.Header) (string, error) {
	s, err := one(h, HeaderChecksumAlgorithm)
	if err != nil {
		return "", err
	}
	return text(HeaderChecksumAlgorithm, s, 32)
}
