package client

import (
	"time"

	"s3rdmafs/rc/rctest/sigv4"
	"s3rdmafs/verbs"
)

// Profile is how a client behaves where the public clients differ.
type Profile struct {
	Name string

	// FreshConnections opens a connection for each request.
	FreshConnections bool
	// Port80 names port 80 in Host, whatever the port is.
	Port80 bool
	// NeedLength refuses answers without Content-Length, and chunked ones.
	NeedLength bool

	// Service in the credential scope.
	Service string
	// PayloadHash is the value of X-Amz-Content-Sha256, "" leaves it out.
	PayloadHash string
	// SignContentLength has Content-Length among the signed headers.
	SignContentLength bool

	// OmitZeroOffset leaves the offset out when it is 0.
	OmitZeroOffset bool
	// BufferInPrepare sends QP number, address and key in PREPARE as well.
	BufferInPrepare bool
	// NeedQPN refuses an answer to PREPARE without x-amz-rdma-qpn.
	NeedQPN bool
	// QPNDigits pads the QP number of READY with zeros.
	QPNDigits int
	// BufferOnPut sends the real address and key in READY of a PUT.
	BufferOnPut bool
	// CancelCookie sends the cookie with CANCEL.
	CancelCookie bool

	MTU      verbs.MTU
	HopLimit uint8
	// Grace is slept between sending READY and a PUT's write.
	Grace time.Duration
	// LateReceive posts a GET's receive after READY was sent.
	LateReceive bool
	// ExactLength requires byte_len of a GET's completion, and FINAL's count, to be
	// what was asked for.
	ExactLength bool
	// CancelFirst cancels before the QP is destroyed.
	CancelFirst bool
	// Buffer is the size of the registered region whatever the transfer's size is;
	// 0 makes it fit.
	Buffer int
}

// The public clients. All of them look at READY's answer only when the completion
// is there or their time is over.
var (
	// HIPLib is hipObject's library with its minio-cpp bridge.
	HIPLib = Profile{
		Name: "HIP-lib", FreshConnections: true, NeedLength: true,
		Service: "s3", PayloadHash: "UNSIGNED-PAYLOAD", SignContentLength: true,
		OmitZeroOffset: true, BufferOnPut: true,
		MTU: verbs.MTU4096, HopLimit: 64, Grace: 100 * time.Millisecond, ExactLength: true, CancelFirst: true,
	}
	// VGWClient is versitygw's control client, which drives HIP-lib's data plane.
	VGWClient = Profile{
		Name: "VGW-cl", FreshConnections: true, Port80: true, NeedLength: true,
		Service: "s3", PayloadHash: sigv4.EmptyHash, SignContentLength: true,
		OmitZeroOffset: true, QPNDigits: 16, BufferOnPut: true, CancelCookie: true,
		MTU: verbs.MTU4096, HopLimit: 64, Grace: 100 * time.Millisecond, ExactLength: true, CancelFirst: true,
	}
	// HIPDataClient is hipObject's stand-alone test client.
	HIPDataClient = Profile{
		Name: "HIP-dc", FreshConnections: true, Service: "hipobj",
		OmitZeroOffset: true, BufferInPrepare: true, NeedQPN: true, BufferOnPut: true,
		MTU: verbs.MTU1024, HopLimit: 1, Grace: 100 * time.Millisecond, LateReceive: true, ExactLength: true, CancelFirst: true,
		Buffer: 4096,
	}
)

// Profiles are all of the above.
var Profiles = []Profile{HIPLib, VGWClient, HIPDataClient}
