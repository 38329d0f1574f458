package token

import "net/http"

// Protocol is the value of HeaderProtocol in every message.
const Protocol = "hipobj-rc-v2"

// Paths of the control requests, all POST on the S3 endpoint (section 5).
// PathNext belongs to the extension "keep".
const (
	PathPrefix  = "/.hipobj-rc/"
	PathPrepare = PathPrefix + "prepare"
	PathReady   = PathPrefix + "ready"
	PathCancel  = PathPrefix + "cancel"
	PathNext    = PathPrefix + "next"
)

// Header names in canonical form.
const (
	HeaderPrefix            = "X-Amz-Rdma-"
	HeaderProtocol          = "X-Amz-Rdma-Protocol"
	HeaderToken             = "X-Amz-Rdma-Token"
	HeaderPSN               = "X-Amz-Rdma-Psn"
	HeaderCookie            = "X-Amz-Rdma-Cookie"
	HeaderOp                = "X-Amz-Rdma-Op"
	HeaderTarget            = "X-Amz-Rdma-Target"
	HeaderSize              = "X-Amz-Rdma-Size"
	HeaderOffset            = "X-Amz-Rdma-Offset"
	HeaderSession           = "X-Amz-Rdma-Session"
	HeaderQPN               = "X-Amz-Rdma-Qpn"
	HeaderMRAddr            = "X-Amz-Rdma-Mr-Addr"
	HeaderMRRKey            = "X-Amz-Rdma-Mr-Rkey"
	HeaderReply             = "X-Amz-Rdma-Reply"
	HeaderBytes             = "X-Amz-Rdma-Bytes-Transferred"
	HeaderETag              = "X-Amz-Rdma-Etag"
	HeaderVersionID         = "X-Amz-Rdma-Version-Id"
	HeaderChecksum          = "X-Amz-Rdma-Checksum"
	HeaderChecksumCRC64     = "X-Amz-Rdma-Checksum-Crc64nvme"
	HeaderChecksumAlgorithm = "X-Amz-Rdma-Checksum-Algorithm"
	HeaderCapabilities      = "X-Amz-Rdma-Capabilities"
	HeaderAccept            = "X-Amz-Rdma-Accept"

	// HeaderProtocolStatus with StatusUnsupported is the marker of section 10.2.
	HeaderProtocolStatus = "X-Amz-Rdma-Protocol-Status"
	StatusUnsupported    = "unsupported"

	// HeaderS3VersionID is where a client looks when HeaderVersionID is absent.
	HeaderS3VersionID = "X-Amz-Version-Id"

	// Conditions, extension "cond".
	HeaderIfMatch     = "If-Match"
	HeaderIfNoneMatch = "If-None-Match"

	// User metadata and content type of a PUT, extension "meta".
	HeaderMeta        = "X-Amz-Rdma-Meta"
	HeaderContentType = "X-Amz-Rdma-Content-Type"

	// HeaderKeep, extension "keep": "1" in PREPARE asks for a kept session; in the
	// answer it is the idle limit in whole seconds.
	HeaderKeep = "X-Amz-Rdma-Keep"
	// HeaderSeq counts the NEXT requests of a kept session from 1.
	HeaderSeq = "X-Amz-Rdma-Seq"
)

// AlgorithmCRC64NVME is the value of HeaderChecksumAlgorithm that asks for a
// CRC-64/NVME of the transferred bytes in FINAL.
const AlgorithmCRC64NVME = "CRC64NVME"

// MaxSize is the most bytes one transfer can move.
const MaxSize = 1<<31 - 1

// CheckProtocol tells whether the message has exactly this protocol's header,
// as a server compares it.
func CheckProtocol(h http.Header) bool {
	v, err := one(h, HeaderProtocol)
	return err == nil && v == Protocol
}
