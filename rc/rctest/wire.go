package rctest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc64"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"s3rdmafs/verbs"
)

const (
	proto     = "hipobj-rc-v2"
	emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	prefix    = "/.hipobj-rc/"
)

// end is a decoded token.
type end struct {
	qpn  uint32
	gid  verbs.GID
	port uint8
	lid  uint16
}

func decodeToken(s string) (end, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 44 {
		return end{}, errors.New("token: not 44 bytes of hex")
	}
	if b[0] != 1 {
		return end{}, errors.New("token: not RC")
	}
	e := end{
		qpn:  binary.LittleEndian.Uint32(b[1:5]),
		gid:  verbs.GID(b[5:21]),
		port: b[41],
		lid:  binary.LittleEndian.Uint16(b[42:44]),
	}
	if e.gid.IsZero() {
		return end{}, errors.New("token: no GID")
	}
	return e, nil
}

func (e end) encode() string {
	b := []byte{1}
	b = binary.LittleEndian.AppendUint32(b, e.qpn)
	b = append(b, e.gid[:]...)
	b = append(b, make([]byte, 4+8+8)...)
	b = append(b, e.port)
	b = binary.LittleEndian.AppendUint16(b, e.lid)
	return hex.EncodeToString(b)
}

// fields reads numbers from headers, remembering the first that is malformed.
type fields struct {
	h   http.Header
	bad string
}

func (f *fields) hex(name string, digits, bits int) uint64 {
	s := f.h.Get(name)
	v, err := strconv.ParseUint(s, 16, bits)
	if err != nil || strings.ContainsAny(s, "+-_") || (digits != 0 && len(s) != digits) {
		f.fail(name)
	}
	return v
}

func (f *fields) decimal(name string) int64 {
	v, err := strconv.ParseUint(f.h.Get(name), 10, 63)
	if err != nil {
		f.fail(name)
	}
	return int64(v)
}

func (f *fields) fail(name string) {
	if f.bad == "" {
		f.bad = name
	}
}

// splitTarget returns bucket, key and the raw query.
func splitTarget(s string) (name, query string, err error) {
	path, query, _ := strings.Cut(s, "?")
	if !strings.HasPrefix(path, "/") {
		return "", "", errors.New("target: no leading slash")
	}
	name, err = url.PathUnescape(path[1:])
	if err != nil {
		return "", "", err
	}
	bucket, key, ok := strings.Cut(name, "/")
	if !ok || bucket == "" || key == "" {
		return "", "", errors.New("target: no bucket or key")
	}
	return name, query, nil
}

var nvme = crc64.MakeTable(0x9A6C9329AC4BC9B5)

// crc is CRC-64/NVME; hash/crc64 inverts at both ends by itself.
func crc(p []byte) uint64 { return crc64.Checksum(p, nvme) }
