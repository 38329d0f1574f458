package rctest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc64"
	"net/http"
	"strconv"
	"strings"

	"s3rdmafs/verbs"
)

const (
	proto  = "hipobj-rc-v2"
	prefix = "/.hipobj-rc/"
)

// endpoint is one end of a connection: a decoded token.
type endpoint struct {
	qpn    uint32
	gid    verbs.GID
	rkey   uint32
	addr   uint64
	length uint64
	port   uint8
	lid    uint16
	zero   bool // the zero token
}

func (pr *Profile) decodeToken(s string) (endpoint, error) {
	if s == "" && pr.TokenOptional {
		return endpoint{zero: true}, nil
	}
	if base, suffix, has := strings.Cut(s, ":"); has && pr.TokenSuffix {
		if addr, length, ok := strings.Cut(suffix, ":"); !ok || addr == "" || length == "" {
			return endpoint{}, errors.New("token: suffix")
		}
		s = base
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 44 {
		return endpoint{}, errors.New("token: not 44 bytes of hex")
	}
	if [44]byte(b) == [44]byte{} {
		return endpoint{zero: true}, nil
	}
	if b[0] != 1 {
		return endpoint{}, errors.New("token: not RC")
	}
	e := endpoint{
		qpn:    binary.LittleEndian.Uint32(b[1:5]),
		gid:    verbs.GID(b[5:21]),
		rkey:   binary.LittleEndian.Uint32(b[21:25]),
		addr:   binary.LittleEndian.Uint64(b[25:33]),
		length: binary.LittleEndian.Uint64(b[33:41]),
		port:   b[41],
		lid:    binary.LittleEndian.Uint16(b[42:44]),
	}
	if e.gid.IsZero() && !pr.ZeroGID {
		return endpoint{}, errors.New("token: no GID")
	}
	return e, nil
}

func (e endpoint) encode() string {
	b := []byte{1}
	b = binary.LittleEndian.AppendUint32(b, e.qpn)
	b = append(b, e.gid[:]...)
	b = binary.LittleEndian.AppendUint32(b, e.rkey)
	b = binary.LittleEndian.AppendUint64(b, e.addr)
	b = binary.LittleEndian.AppendUint64(b, e.length)
	b = append(b, e.port)
	b = binary.LittleEndian.AppendUint16(b, e.lid)
	return hex.EncodeToString(b)
}

// fields reads numbers from headers, remembering the first that is malformed.
type fields struct {
	h   http.Header
	bad string
}

func (f *fields) has(name string) bool { return f.h.Get(name) != "" }

func (f *fields) hex(name string, d Digits, most uint64) uint64 {
	s := strings.Trim(f.h.Get(name), " \t")
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || strings.ContainsAny(s, "+-_x") || len(s) < d.Min || len(s) > d.Max || v > most {
		f.fail(name)
	}
	return v
}

func (f *fields) decimal(name string, digits int) int64 {
	s := strings.Trim(f.h.Get(name), " \t")
	v, err := strconv.ParseUint(s, 10, 63)
	if err != nil || len(s) > digits {
		f.fail(name)
	}
	return int64(v)
}

func (f *fields) fail(name string) {
	if f.bad == "" {
		f.bad = name
	}
}

var nvme = crc64.MakeTable(0x9A6C9329AC4BC9B5)

// crc is CRC-64/NVME; hash/crc64 inverts at both ends by itself.
func crc(p []byte) uint64 { return crc64.Checksum(p, nvme) }
