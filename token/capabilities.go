package token

import "strings"

// Capabilities is the set of extension words an endpoint advertised (sections
// 11.6 and 20).
type Capabilities uint16

const (
	CapMP   Capabilities = 1 << iota // part uploads
	CapEP                            // early pairing
	CapBig                           // ranges may end beyond 2^31−1
	CapCond                          // If-Match and If-None-Match
	CapCRC                           // FINAL carries a checksum on request
	CapKeep                          // kept sessions, PathNext
	CapMeta                          // user metadata and content type of a PUT
	CapVer                           // GET with versionId
	CapST                            // streaming GET
)

var capabilityWords = [...]string{"mp", "ep", "big", "cond", "crc", "keep", "meta", "ver", "st"}

// Has reports whether every word of want is in c.
func (c Capabilities) Has(want Capabilities) bool { return c&want == want }

// String lists the words separated by commas, the form of HeaderCapabilities.
func (c Capabilities) String() string {
	var words []string
	for i, w := range capabilityWords {
		if c&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return strings.Join(words, ",")
}

// ParseCapabilities reads a list separated by commas and blanks. Unknown words
// are ignored, so it cannot fail.
func ParseCapabilities(s string) Capabilities {
	var c Capabilities
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		for i, w := range capabilityWords {
			if word == w {
				c |= 1 << i
			}
		}
	}
	return c
}

// MarshalText is String, so that counters show the words.
func (c Capabilities) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
