package rctest

import (
	"net/http"
	"time"
)

const gib = 1 << 30

// The public servers, as the specification describes them.
var (
	// VGW is versitygw v1.8.0.
	VGW = Profile{
		Name:    "VGW",
		Answers: vgwAnswers(),
		PSN:     Digits{1, 16}, Cookie: Digits{1, 16}, QPN: Digits{1, 16}, DecimalDigits: 20, AnyCaseOp: true, UpperHex: true,
		TokenOptional: true, TokenSuffix: true, ZeroGID: true, TokenDefault: true,
		Body: "OK", CloseConnections: true, ErrorXML: true, Service: "s3", Identity: IdentitySecret,
		OffsetRequired: true, StagingOnGet: true, PSNIsQPN: true,
		BufferOnPut: true, ETagOnGet: true, ETagOnPut: true, Version: true,
		ReceiveInReady: true, RemoteRead: true, CQE: 16, SendWR: 16, RecvWR: 16,
		PrepareTime: 100 * time.Second, Sessions: 1024, PerPrincipal: 16, Readies: 64, StagingPerSession: gib, DeadEntries: true,
	}
	// VGWHint is VGW started with --rc-gid-hint 0:0:0:0.
	VGWHint = vgw("VGW with GID hint", func(p *Profile) { p.GID = GIDHintIPv4 })
	// VGWMain is later development code of VGW.
	VGWMain = vgw("VGW-main", func(p *Profile) {
		p.LID = true
		p.PartPut, p.PartGet, p.VersionGet, p.OtherQuery = QueryServed, QueryRefused, QueryRefused, QueryRefused
	})
	// VGWMP is VGW with multipart, which it advertises.
	VGWMP = vgw("VGW-mp", func(p *Profile) {
		p.LID = true
		p.OffsetRequired = false
		p.PartPut, p.PartGet, p.VersionGet, p.OtherQuery = QueryServed, QueryServed, QueryRefused, QueryRefused
		p.Capabilities = "mp"
	})
	// ELB is elbencho's test server.
	ELB = Profile{
		Name: "ELB",
		Answers: Answers{
			PrepareNoProtocol: unsupported(), PrepareOtherProtocol: unsupported(),
			NoProtocol: unsupported(), OtherProtocol: unsupported(),
			Malformed: refuse(400, ""), SizeZero: refuse(400, ""), SizeOver2G: refuse(413, ""),
			NoBucket: refuse(404, ""), NoKey: refuse(404, ""), RangeStart: refuse(416, ""), RangeEnd: refuse(416, ""),
			Limit: refuse(503, ""), Off: unsupported(),
			UnknownSession: refuse(409, ""), SecondReady: refuse(409, ""), OtherCookie: end(403, ""),
			NoQPN: end(400, ""), NoBuffer: end(400, ""), ZeroBuffer: end(400, ""),
			ConnectFailed: end(500, ""), PeerBusy: end(500, ""), Timeout: end(408, ""), WireError: end(500, ""), StoreFailed: end(500, ""),
			Canceled: refuse(204, ""), CancelUnknown: refuse(204, ""), UnknownPath: refuse(404, ""),
		},
		PSN: Digits{1, 6}, Cookie: Digits{1, 8}, QPN: Digits{1, 8}, ZeroCookie: true, DecimalDigits: 19,
		TokenSuffix: true, ZeroGID: true, StagingToken: StagingTokenAlways,
		KeepAlive: "timeout=60, max=1000000", Threads: 8, Target: TargetLibrary, MissingBucketInReady: true,
		StagingOnGet: true, GID: GIDMatched, ETagOnPut: true,
		ReceiveInReady: true, RemoteRead: true, CQE: 16, SendWR: 8, RecvWR: 8,
		PrepareTime: 10 * time.Second, Sessions: 64,
	}
	// HIPRef is hipObject's reference test server.
	HIPRef = Profile{
		Name: "HIP-ref",
		Answers: Answers{
			PrepareNoProtocol: refuse(400, ""), PrepareOtherProtocol: unsupported(),
			NoProtocol: refuse(400, ""), OtherProtocol: unsupported(),
			Anonymous: refuse(403, ""), UnknownKey: refuse(403, ""), OtherScope: refuse(403, ""), UnsignedHeader: refuse(403, ""),
			OtherPayloadHash: refuse(403, ""), UnsignedPayload: refuse(403, ""), Skewed: refuse(403, ""), BadSignature: refuse(403, ""),
			Malformed: refuse(400, ""), SizeZero: refuse(400, ""), SizeOver2G: refuse(413, ""),
			NoKey: refuse(500, ""), RangeStart: refuse(416, ""), RangeEnd: refuse(416, ""),
			Limit: refuse(503, ""), Off: refuse(404, ""),
			UnknownSession: refuse(409, ""), ForeignReady: refuse(403, ""), SecondReady: refuse(409, ""), OtherCookie: refuse(403, ""),
			NoBuffer: end(500, ""), ZeroBuffer: end(500, ""),
			ConnectFailed: end(500, ""), PeerBusy: end(500, ""), Timeout: end(408, ""), WireError: end(500, ""),
			Canceled: refuse(204, ""), CancelUnknown: refuse(204, ""), ForeignCancel: refuse(204, ""), UnknownPath: refuse(404, ""),
		},
		PSN: Digits{1, 6}, Cookie: Digits{8, 8}, QPN: Digits{1, 8}, DecimalDigits: 20,
		TokenSuffix: true, Service: "hipobj", Identity: IdentityKey, Target: TargetVerbatim,
		StagingOnGet: true, DryRun: true,
		ReceiveInReady: true, RemoteRead: true, CQE: 16, SendWR: 16, RecvWR: 16,
		PrepareTime: 10 * time.Second, Sessions: 4096,
	}
	// RGW is the Ceph proposal in its newer form: it streams GETs.
	RGW = Profile{
		Name: "RGW",
		Answers: Answers{
			PrepareNoProtocol: unsupported(), PrepareOtherProtocol: unsupported(),
			NoProtocol: refuse(400, "InvalidRequest"), OtherProtocol: refuse(400, "InvalidRequest"),
			Anonymous: refuse(403, "AccessDenied"), UnknownKey: refuse(403, "InvalidAccessKeyId"), OtherScope: refuse(403, "AccessDenied"),
			UnsignedHeader: refuse(403, "AccessDenied"), NoPayloadHash: refuse(403, "AccessDenied"), OtherPayloadHash: refuse(403, "AccessDenied"),
			Skewed: refuse(403, "RequestTimeTooSkewed"), BadSignature: refuse(403, "SignatureDoesNotMatch"),
			Malformed: refuse(400, "InvalidArgument"), SizeZero: refuse(400, "InvalidArgument"), SizeOver2G: refuse(400, "InvalidArgument"),
			SizeOverBuffer: refuse(413, "EntityTooLarge"), EndOver2G: refuse(400, "InvalidArgument"),
			Denied: refuse(403, "AccessDenied"), NoBucket: refuse(404, "NoSuchBucket"), NoKey: refuse(404, "NoSuchKey"),
			RangeStart: refuse(416, "InvalidRange"), UnsupportedQuery: unsupported(), NotServable: unsupported(),
			Limit: refuse(503, "SlowDown"), ShuttingDown: unsupported(), Off: unsupported(),
			UnknownSession: refuse(404, "NoSuchRdmaSession"), ForeignReady: refuse(404, "NoSuchRdmaSession"),
			SecondReady: refuse(409, "RdmaTransferInProgress"), OtherCookie: refuse(404, "NoSuchRdmaSession"),
			NoQPN: refuse(400, "InvalidRequest"), NoBuffer: refuse(400, "InvalidRequest"), ZeroBuffer: refuse(400, "InvalidRequest"),
			ConnectFailed: end(500, "InternalError"), PeerBusy: {Status: 409, Code: "RdmaPeerBusy", Rearms: true},
			Timeout: end(408, "RequestTimeout"), WireError: end(500, "InternalError"),
			Canceled: refuse(200, ""), CancelUnknown: refuse(200, ""), ForeignCancel: refuse(404, "NoSuchRdmaSession"),
			UnknownPath: refuse(405, "MethodNotAllowed"),
		},
		PSN: Digits{6, 6}, Cookie: Digits{8, 8}, QPN: Digits{1, 16}, DecimalDigits: 20, AnyCaseOp: true, UpperHex: true,
		TokenDefault: true, StagingToken: StagingTokenPut, RepeatToken: true, LID: true,
		ErrorXML: true, ErrorEcho: true, Service: "s3", Identity: IdentitySecret,
		PartPut: QueryUnsupported, PartGet: QueryUnsupported, VersionGet: QueryServed, OtherQuery: QueryUnsupported,
		GID: GIDPreferV2, ETagOnGet: true, ETagOnPut: true, S3ETag: true, Version: true,
		Checksum: "X-Amz-Rdma-Checksum-Crc64nvme", StreamChunk: 64 << 10, ReadInReady: true,
		RemoteRead: true, CQE: 65, SendWR: 64, RecvWR: 1,
		PrepareTime: 100 * time.Second, Sessions: 1024, PerPrincipal: 64, StagingPerSession: 64 << 20,
	}
	// RGWOlder sends the last bytes with the immediate, and the older checksum header.
	RGWOlder = with(RGW, func(p *Profile) {
		p.Name = "RGW-older"
		p.StreamChunk, p.StreamTail = 1<<20, 64<<10
		p.Checksum = "X-Amz-Rdma-Checksum"
	})
	// EarlyPair is no public server: section 20's "ep" and "mp" and nothing else.
	EarlyPair = with(RGW, func(p *Profile) {
		p.Name = "ep"
		p.UpperHex, p.StreamChunk, p.ReadInReady, p.Checksum = false, 0, false, ""
		p.EarlyPairing, p.NoQPN, p.PartPut = true, true, QueryServed
		p.Capabilities, p.CapabilitiesAlways = "mp, ep unheard-of", true
	})
)

// Profiles are all of the above.
var Profiles = []Profile{VGW, VGWHint, VGWMain, VGWMP, ELB, HIPRef, RGW, RGWOlder, EarlyPair}

func with(p Profile, edit func(*Profile)) Profile {
	edit(&p)
	return p
}

func vgw(name string, edit func(*Profile)) Profile {
	p := with(VGW, edit)
	p.Name = name
	return p
}

func vgwAnswers() Answers {
	bad := refuse(http.StatusBadRequest, "InvalidRdmaRequest")
	gone := refuse(http.StatusNotFound, "NoSuchRdmaSession")
	failed := end(http.StatusBadGateway, "RdmaTransferFailed")
	limit := refuse(http.StatusTooManyRequests, "RdmaResourceLimit")
	return Answers{
		PrepareNoProtocol: bad, PrepareOtherProtocol: bad, NoProtocol: bad, OtherProtocol: bad,
		Anonymous: refuse(403, "AccessDenied"), UnknownKey: refuse(404, "XAdminUserNotFound"),
		OtherScope: refuse(400, "AuthorizationHeaderMalformed"), UnsignedHeader: refuse(403, "AccessDenied"),
		NoPayloadHash: refuse(400, "InvalidRequest"), OtherPayloadHash: refuse(400, "XAmzContentSHA256Mismatch"),
		Skewed: refuse(403, "RequestTimeTooSkewed"), BadSignature: refuse(403, "SignatureDoesNotMatch"),
		Malformed: bad, SizeZero: bad, SizeOver2G: bad, SizeOverBuffer: limit, EndOver2G: bad,
		Denied: refuse(403, "AccessDenied"), NoBucket: refuse(404, "NoSuchBucket"), NoKey: refuse(404, "NoSuchKey"),
		RangeStart: refuse(416, "InvalidRange"), RangeEnd: bad, BadQuery: bad,
		Limit: limit, ShuttingDown: refuse(503, "RdmaServiceUnavailable"), Off: refuse(501, "NotImplemented"),
		UnknownSession: gone, ForeignReady: gone, SecondReady: refuse(409, "RdmaSessionConflict"), OtherCookie: gone,
		NoQPN: bad, NoBuffer: bad, ZeroBuffer: failed,
		ConnectFailed: failed, PeerBusy: {Status: 409, Code: "RdmaSessionConflict", Rearms: true}, Timeout: failed, WireError: failed,
		Canceled: refuse(200, ""), CancelUnknown: gone, ForeignCancel: gone,
		UnknownPath: refuse(405, "MethodNotAllowed"),
	}
}
