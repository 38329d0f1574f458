package token

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// Size is the length of an encoded token in bytes; its text form has twice as
// many hex digits.
const Size = 44

// TransportRC is the only transport of this protocol.
const TransportRC = 1

// Token describes one end of a connection (section 4.1). The zero value is the
// zero token.
type Token struct {
	Transport uint8
	QPNum     uint32 // 24 bits
	GID       [16]byte
	RKey      uint32
	Addr      uint64
	Length    uint64 // bytes
	Port      uint8  // counted from 1
	LID       uint16 // 0 on RoCE
}

// IsZero reports whether t is the zero token.
func (t Token) IsZero() bool { return t == Token{} }

// String is the 88-digit form.
func (t Token) String() string {
	var b [Size]byte
	b[0] = t.Transport
	binary.LittleEndian.PutUint32(b[1:], t.QPNum)
	copy(b[5:], t.GID[:])
	binary.LittleEndian.PutUint32(b[21:], t.RKey)
	binary.LittleEndian.PutUint64(b[25:], t.Addr)
	binary.LittleEndian.PutUint64(b[33:], t.Length)
	b[41] = t.Port
	binary.LittleEndian.PutUint16(b[42:], t.LID)
	return hex.EncodeToString(b[:])
}

// Reply is the form of HeaderReply.
func (t Token) Reply() string { return "200:" + t.String() }

// Parse decodes exactly 88 hex digits. A token other than the zero token must
// have transport RC, a GID and a QP number of at most 24 bits.
func Parse(s string) (Token, error) { return parse(HeaderToken, s) }

func parse(header, s string) (Token, error) {
	var b [Size]byte
	if len(s) != 2*Size {
		return Token{}, syntax(header, "token is not 88 hex digits")
	}
	if _, err := hex.Decode(b[:], []byte(s)); err != nil {
		return Token{}, syntax(header, "token is not 88 hex digits")
	}
	t := Token{
		Transport: b[0],
		QPNum:     binary.LittleEndian.Uint32(b[1:]),
		GID:       [16]byte(b[5:21]),
		RKey:      binary.LittleEndian.Uint32(b[21:]),
		Addr:      binary.LittleEndian.Uint64(b[25:]),
		Length:    binary.LittleEndian.Uint64(b[33:]),
		Port:      b[41],
		LID:       binary.LittleEndian.Uint16(b[42:]),
	}
	switch {
	case t.IsZero():
		return t, nil
	case t.Transport != TransportRC:
		return Token{}, syntax(header, "transport is not RC")
	case t.GID == [16]byte{}:
		return Token{}, syntax(header, "token without GID")
	case t.QPNum > maxQPN:
		return Token{}, syntax(header, "QP number has more than 24 bits")
	}
	return t, nil
}

// ParseRequest decodes a request token as a server: the suffix form of section
// 4.4 is accepted and its suffix ignored.
func ParseRequest(s string) (Token, error) {
	base, suffix, has := strings.Cut(s, ":")
	if has {
		addr, length, ok := strings.Cut(suffix, ":")
		if !ok || len(addr) > 16 || len(length) > 16 || !isHex(addr) || !isHex(length) {
			return Token{}, syntax(HeaderToken, "malformed suffix")
		}
	}
	return Parse(base)
}

// ParseReply decodes the value of HeaderReply. The zero token is valid text; the
// caller must treat it as "no transport".
func ParseReply(s string) (Token, error) {
	base, ok := strings.CutPrefix(s, "200:")
	if !ok {
		return Token{}, syntax(HeaderReply, "does not start with 200:")
	}
	return parse(HeaderReply, base)
}
