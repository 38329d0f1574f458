package token

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// MaxTarget is the longest target in bytes (section 7.2).
const MaxTarget = 2047

// MaxParts is the highest part number of a multipart upload.
const MaxParts = 10000

// Target names the object of a transfer (section 7.2).
type Target struct {
	Bucket, Key string
	UploadID    string            // "" when absent
	PartNumber  int               // 0 when absent
	VersionID   string            // "" when absent
	Other       map[string]string // further parameters, nil when none
}

// IsPart reports whether t has exactly the parameters of a part upload.
func (t Target) IsPart() bool {
	return t.UploadID != "" && t.PartNumber != 0 && t.VersionID == "" && len(t.Other) == 0
}

// Plain reports whether t has no query.
func (t Target) Plain() bool {
	return t.UploadID == "" && t.PartNumber == 0 && t.VersionID == "" && len(t.Other) == 0
}

// Encode is the canonical text. It may be longer than MaxTarget; then a
// server refuses it.
func (t Target) Encode() string {
	var b strings.Builder
	b.WriteByte('/')
	escape(&b, t.Bucket, false)
	b.WriteByte('/')
	escape(&b, t.Key, true)
	query := maps.Clone(t.Other)
	if query == nil {
		query = make(map[string]string)
	}
	if t.UploadID != "" {
		query["uploadId"] = t.UploadID
	}
	if t.PartNumber != 0 {
		query["partNumber"] = strconv.Itoa(t.PartNumber)
	}
	if t.VersionID != "" {
		query["versionId"] = t.VersionID
	}
	if len(query) > 0 {
		b.WriteByte('?')
		pairs(&b, query)
	}
	return b.String()
}

// ParseTarget decodes a target as a server. A query without value for one of
// the known parameters, or with a parameter twice, is malformed; parameters that
// are merely unknown go to Other.
func ParseTarget(s string) (Target, error) {
	if len(s) > MaxTarget {
		return Target{}, syntax(HeaderTarget, "longer than 2047 bytes")
	}
	path, query, hasQuery := strings.Cut(s, "?")
	path, ok := strings.CutPrefix(path, "/")
	if !ok {
		return Target{}, syntax(HeaderTarget, "does not start with a slash")
	}
	rawBucket, rawKey, _ := strings.Cut(path, "/")
	bucket, err := unescape(HeaderTarget, rawBucket)
	if err != nil {
		return Target{}, err
	}
	key, err := unescape(HeaderTarget, rawKey)
	if err != nil {
		return Target{}, err
	}
	switch {
	case bucket == "":
		return Target{}, syntax(HeaderTarget, "no bucket")
	case key == "":
		return Target{}, syntax(HeaderTarget, "no key")
	case bucket == "." || bucket == ".." || strings.ContainsAny(bucket, "/\x00"):
		// No bucket is called so, and a store on a file system would leave its root.
		return Target{}, syntax(HeaderTarget, "not a bucket name")
	}
	t := Target{Bucket: bucket, Key: key}
	if !hasQuery || query == "" {
		return t, nil
	}
	params, err := parsePairs(HeaderTarget, query)
	if err != nil {
		return Target{}, err
	}
	for _, name := range []string{"uploadId", "partNumber", "versionId"} {
		if v, has := params[name]; has && v == "" {
			return Target{}, syntax(HeaderTarget, "empty "+name)
		}
	}
	t.UploadID, t.VersionID = params["uploadId"], params["versionId"]
	if v, has := params["partNumber"]; has {
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil || n < 1 || n > MaxParts {
			return Target{}, syntax(HeaderTarget, "partNumber not in 1 to 10000")
		}
		t.PartNumber = int(n)
	}
	delete(params, "uploadId")
	delete(params, "partNumber")
	delete(params, "versionId")
	if len(params) > 0 {
		t.Other = params
	}
	return t, nil
}

const upperHex = "0123456789ABCDEF"

func escape(b *strings.Builder, s string, slash bool) {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '.', c == '_', c == '~', slash && c == '/':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
}

// unescape gives "+" no special meaning, unlike net/url in queries.
func unescape(header, s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) || !isHex(s[i+1:i+3]) {
			return "", syntax(header, "malformed percent escape")
		}
		b.WriteByte(unhex(s[i+1])<<4 | unhex(s[i+2]))
		i += 2
	}
	return b.String(), nil
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}

// pairs writes name=value pairs sorted by name.
func pairs(b *strings.Builder, m map[string]string) {
	for i, name := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte('&')
		}
		escape(b, name, false)
		b.WriteByte('=')
		escape(b, m[name], false)
	}
}

func parsePairs(header, s string) (map[string]string, error) {
	m := make(map[string]string)
	for pair := range strings.SplitSeq(s, "&") {
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := unescape(header, rawName)
		if err != nil {
			return nil, err
		}
		value, err := unescape(header, rawValue)
		if err != nil {
			return nil, err
		}
		if name == "" {
			return nil, syntax(header, "parameter without name")
		}
		if _, has := m[name]; has {
			return nil, syntax(header, "parameter given twice")
		}
		m[name] = value
	}
	return m, nil
}
