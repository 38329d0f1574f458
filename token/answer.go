package token

import (
	"net/http"
	"strings"
)

// checkEcho requires the protocol header of an answer, in any case.
func checkEcho(h http.Header) error {
	v, err := one(h, HeaderProtocol)
	if err == nil && !strings.EqualFold(v, Protocol) {
		err = syntax(HeaderProtocol, "no echo of "+Protocol)
	}
	return err
}

// IsMarker reports whether an answer with status 501 carries the marker of
// section 10.2, "use plain HTTP for this".
func IsMarker(h http.Header) bool {
	v, err := one(h, HeaderProtocolStatus)
	return err == nil && strings.EqualFold(v, StatusUnsupported)
}

// CapabilitiesOf reads the capabilities of any answer.
func CapabilitiesOf(h http.Header) Capabilities {
	return ParseCapabilities(strings.Join(h[HeaderCapabilities], ","))
}

func setCapabilities(h http.Header, c Capabilities) {
	if c != 0 {
		h.Set(HeaderCapabilities, c.String())
	}
}
