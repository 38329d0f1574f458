package token

import (
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/minio/crc64nvme"
)

// CRC64NVME is the checksum of section 11.7.
func CRC64NVME(p []byte) uint64 { return crc64nvme.Checksum(p) }

// FormatChecksum is the value of HeaderChecksum.
func FormatChecksum(crc uint64) string {
	return AlgorithmCRC64NVME + " " + base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, crc))
}

// ParseChecksum reads the value of HeaderChecksum; only the canonical form is valid.
func ParseChecksum(s string) (uint64, error) {
	v, ok := strings.CutPrefix(s, AlgorithmCRC64NVME+" ")
	if !ok {
		return 0, syntax(HeaderChecksum, "not of the form CRC64NVME base64")
	}
	return parseCRC64(HeaderChecksum, v)
}

// parseCRC64 reads 8 bytes of canonical base64.
func parseCRC64(header, s string) (uint64, error) {
	// The decoder would skip line breaks; the length excludes them.
	if len(s) != 12 {
		return 0, syntax(header, "not 12 characters of base64")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != 8 {
		return 0, syntax(header, "not the canonical base64 of 8 bytes")
	}
	return binary.BigEndian.Uint64(b), nil
}
