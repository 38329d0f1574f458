package gateway

import (
	"encoding/base64"
	"encoding/binary"
	"io"

	"github.com/minio/crc64nvme"
	"github.com/versity/versitygw/s3api/middlewares"
)

// stagedBody is the body of a PUT that lies in staging memory. It computes the
// CRC-64/NVME that versitygw stores with each object, as a client's trailing
// checksum would bring it, because versitygw's own code for it is table-driven
// and costs a third of the PUT. The checksum is over what was handed out, not
// over the staging memory, which the client could still change.
type stagedBody struct {
	data []byte
	crc  uint64
}

var _ middlewares.ChecksumReader = (*stagedBody)(nil)

func (b *stagedBody) Read(p []byte) (int, error) {
	if len(b.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	b.crc = crc64nvme.Update(b.crc, p[:n])
	return n, nil
}

// Algorithm is the name of the checksum, as versitygw spells it.
func (b *stagedBody) Algorithm() string { return "crc64nvme" }

// Checksum is the checksum of all that was read so far.
func (b *stagedBody) Checksum() string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, b.crc))
}
