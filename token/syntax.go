package token

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
)

const (
	maxPSN = 1<<24 - 1
	maxQPN = 1<<24 - 1
)

// one returns the single trimmed value of a header. Absent headers are "", but
// a header given twice is an error: the two ends could pick different ones.
func one(h http.Header, name string) (string, error) {
	values := h[name]
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return strings.Trim(values[0], " \t"), nil
	}
	return "", syntax(name, "given more than once")
}

func required(h http.Header, name string) (string, error) {
	v, err := one(h, name)
	if err == nil && v == "" {
		err = syntax(name, "missing or empty")
	}
	return v, err
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return false
		}
	}
	return s != ""
}

// hexValue reads min to max hex digits without prefix or sign.
func hexValue(header, s string, min, max int, low, high uint64) (uint64, error) {
	if len(s) < min || len(s) > max || !isHex(s) {
		if min == max {
			return 0, syntax(header, fmt.Sprintf("not %d hex digits", max))
		}
		return 0, syntax(header, fmt.Sprintf("not %d to %d hex digits", min, max))
	}
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || v < low || v > high {
		return 0, syntax(header, fmt.Sprintf("not in %#x to %#x", low, high))
	}
	return v, nil
}

// decimal reads 1 to 20 digits without sign.
func decimal(header, s string) (uint64, error) {
	if s == "" || len(s) > 20 {
		return 0, syntax(header, "not 1 to 20 decimal digits")
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, syntax(header, "not 1 to 20 decimal digits")
		}
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, syntax(header, "more than 64 bits")
	}
	return v, nil
}

// clamped reads a decimal number; what does not fit into an int64 is further
// away than any object reaches, and becomes the largest int64.
func clamped(header, s string) (int64, error) {
	v, err := decimal(header, s)
	if err != nil {
		return 0, err
	}
	return int64(min(v, math.MaxInt64)), nil
}

// FormatPSN writes a packet sequence number as six digits.
func FormatPSN(psn uint32) string { return fmt.Sprintf("%06x", psn) }

// FormatCookie writes a cookie as eight digits.
func FormatCookie(cookie uint32) string { return fmt.Sprintf("%08x", cookie) }

// ParsePSN reads the PSN of a request, as a server.
func ParsePSN(s string) (uint32, error) {
	v, err := hexValue(HeaderPSN, s, 1, 8, 1, maxPSN)
	return uint32(v), err
}

// ParseReplyPSN reads the PSN of an answer, as a client.
func ParseReplyPSN(s string) (uint32, error) {
	v, err := hexValue(HeaderPSN, s, 6, 6, 1, maxPSN)
	return uint32(v), err
}

// ParseCookie reads the cookie of a request, as a server.
func ParseCookie(s string) (uint32, error) {
	v, err := hexValue(HeaderCookie, s, 1, 8, 1, math.MaxUint32)
	return uint32(v), err
}

// ParseReplyCookie reads the cookie of an answer, as a client.
func ParseReplyCookie(s string) (uint32, error) {
	v, err := hexValue(HeaderCookie, s, 8, 8, 0, math.MaxUint32)
	return uint32(v), err
}

// ParseQPN reads the QP number of a request, as a server.
func ParseQPN(s string) (uint32, error) {
	v, err := hexValue(HeaderQPN, s, 1, 16, 1, maxQPN)
	return uint32(v), err
}

// ParseReplyQPN reads the QP number of an answer, as a client.
func ParseReplyQPN(s string) (uint32, error) {
	v, err := hexValue(HeaderQPN, s, 1, 8, 1, maxQPN)
	return uint32(v), err
}

// ParseSession checks a session id and returns it unchanged.
func ParseSession(s string) (string, error) {
	if len(s) != 32 || !isHex(s) {
		return "", syntax(HeaderSession, "not 32 hex digits")
	}
	return s, nil
}

func parseAddr(s string) (uint64, error) {
	return hexValue(HeaderMRAddr, s, 1, 16, 0, math.MaxUint64)
}

func hexText(v uint64) string { return strconv.FormatUint(v, 16) }

// text checks a value that is passed on as a header: printable ASCII.
func text(header, s string, limit int) (string, error) {
	if len(s) > limit {
		return "", syntax(header, fmt.Sprintf("longer than %d bytes", limit))
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return "", syntax(header, "not printable ASCII")
		}
	}
	return s, nil
}
