package token

import "strings"

// MaxMeta is the most bytes that names and values of user metadata may have
// together, as in S3; maxMetaText limits the encoded form.
const (
	MaxMeta     = 2048
	maxMetaText = 4096
)

// FormatMeta is the value of HeaderMeta: name=value pairs, percent-encoded as
// in a target's query, joined by "&". Names are without x-amz-meta-.
func FormatMeta(m map[string]string) string {
	var b strings.Builder
	pairs(&b, m)
	return b.String()
}

// ParseMeta reads the value of HeaderMeta. Names are lower-case header tokens,
// values contain no control characters.
func ParseMeta(s string) (map[string]string, error) {
	tooLarge := &SyntaxError{Header: HeaderMeta, Reason: "too much metadata", Err: ErrMetaTooLarge}
	if len(s) > maxMetaText {
		return nil, tooLarge
	}
	m, err := parsePairs(HeaderMeta, s)
	if err != nil {
		return nil, err
	}
	total := 0
	for name, value := range m {
		total += len(name) + len(value)
		if strings.IndexFunc(name, notInMetaName) >= 0 {
			return nil, syntax(HeaderMeta, "name is not a lower-case header token")
		}
		for i := range len(value) {
			if value[i] < 0x20 || value[i] == 0x7f {
				return nil, syntax(HeaderMeta, "control character in a value")
			}
		}
	}
	if total > MaxMeta {
		return nil, tooLarge
	}
	return m, nil
}

func notInMetaName(r rune) bool {
	return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}
