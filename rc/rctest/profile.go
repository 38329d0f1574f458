package rctest

import (
	"time"

	"s3rdmafs/verbs"
)

// Profile is how a peer behaves where the public servers differ: a column of
// the specification's tables.
type Profile struct {
	Name string
	// Answers to what goes wrong, section 10.1.
	Answers Answers

	// Number syntax, section 3.
	PSN, Cookie, QPN Digits
	// ZeroCookie is accepted in PREPARE.
	ZeroCookie bool
	// DecimalDigits of size and offset, at most.
	DecimalDigits int
	// AnyCaseOp accepts "get".
	AnyCaseOp bool
	// UpperHex writes PSN and cookie in upper case.
	UpperHex bool

	// Tokens, section 4. TokenOptional takes a missing one for the zero token;
	// TokenSuffix ignores the suffix of section 4.4; ZeroGID is only found out when
	// pairing; TokenDefault takes zero address and key in READY from PREPARE's token.
	TokenOptional, TokenSuffix, ZeroGID, TokenDefault bool
	// StagingToken says when the reply token has the staging buffer.
	StagingToken StagingToken
	// RepeatToken sends the reply token as x-amz-rdma-token, too.
	RepeatToken bool
	// LID puts the own LID into tokens and uses the client's.
	LID bool

	// HTTP, section 5. Body of successes; CloseConnections sends Connection: close,
	// KeepAlive is a header of that name, Threads bounds requests at a time.
	Body             string
	CloseConnections bool
	KeepAlive        string
	Threads          int
	// ErrorXML adds an S3 error document to errors, ErrorEcho the protocol header.
	ErrorXML, ErrorEcho bool

	// Service in the credential scope, section 6; "" checks no signatures.
	Service string
	// Identity is what a session belongs to, section 8.4.
	Identity Identity

	// PREPARE, section 7.
	OffsetRequired bool
	Target         TargetRule
	// Queries of targets, section 11.5.
	PartPut, PartGet, VersionGet, OtherQuery QueryRule
	// MissingBucketInReady: a PUT into a missing bucket fails in READY.
	MissingBucketInReady bool
	// StagingOnGet sends staging address and key also on GET.
	StagingOnGet bool
	// NoQPN leaves x-amz-rdma-qpn out of the answer.
	NoQPN bool
	// PSNIsQPN uses the QP number as PSN.
	PSNIsQPN bool
	GID      GIDRule

	// READY and FINAL, section 8. BufferOnPut requires the buffer headers for PUT,
	// too; DryRun reports success when there is no QP number.
	BufferOnPut, DryRun  bool
	ETagOnGet, ETagOnPut bool
	// S3ETag sends the ETag header in addition.
	S3ETag bool
	// Version sends the version of a versioned peer.
	Version bool
	// Checksum is the header in which FINAL carries a CRC-64/NVME; "" for none.
	// In x-amz-rdma-checksum it is preceded by the algorithm.
	Checksum string
	// Capabilities is the value of x-amz-rdma-capabilities on FINAL and on errors
	// of READY, with CapabilitiesAlways on all answers.
	Capabilities       string
	CapabilitiesAlways bool

	// Data plane, section 12. ReceiveInReady posts a PUT's receive in READY, after
	// RTS, with one SGE, instead of in PREPARE with none.
	ReceiveInReady bool
	// StreamChunk, if not 0, splits a GET into plain writes of so many bytes; what
	// is left when at most StreamTail bytes are goes with the immediate.
	StreamChunk, StreamTail int
	// ReadInReady reads a GET's data at READY instead of PREPARE.
	ReadInReady bool
	// RemoteRead is set in addition to the access flags of section 12.1.
	RemoteRead bool
	// EarlyPairing takes the QP to RTS in PREPARE; goes with the word "ep".
	EarlyPairing bool
	// Entries of the CQ and work requests of the QP.
	CQE, SendWR, RecvWR int

	// Limits, section 15; 0 is none. Sessions and PerPrincipal count sessions that
	// linger as dead entries, too; StagingPerSession are bytes.
	PrepareTime            time.Duration
	Sessions, PerPrincipal int
	Readies                int
	StagingPerSession      int64
	// DeadEntries keeps sessions whose data phase failed until CANCEL.
	DeadEntries bool
}

// Digits are the lengths that a hexadecimal number may have.
type Digits struct{ Min, Max int }

// StagingToken says when a reply token has address, key and length.
type StagingToken uint8

const (
	StagingTokenNever StagingToken = iota
	StagingTokenPut
	StagingTokenAlways
)

// Identity is what a session belongs to.
type Identity uint8

const (
	IdentityNone   Identity = iota // nobody
	IdentityKey                    // access key
	IdentitySecret                 // access key and secret, so each temporary key is another
)

// TargetRule is how a target becomes the name of an object.
type TargetRule uint8

const (
	// TargetDecoded splits, then decodes bucket and key.
	TargetDecoded TargetRule = iota
	// TargetLibrary decodes before it splits, leaving bad escapes as they are.
	TargetLibrary
	// TargetVerbatim takes all of it, with the query.
	TargetVerbatim
)

// QueryRule is what becomes of a query of a target.
type QueryRule uint8

const (
	QueryDropped QueryRule = iota
	QueryServed
	QueryRefused     // BadQuery
	QueryUnsupported // UnsupportedQuery
)

// GIDRule is how a server chooses its GID (section 12.4) out of Options.GIDs.
type GIDRule uint8

const (
	GIDFirst    GIDRule = iota // table index 0
	GIDHintIPv4                // first IPv4-mapped entry, else the first
	GIDMatched                 // of the family of the client's
	GIDPreferV2                // RoCE v2 and not link-local
)

func (r GIDRule) choose(table []verbs.GIDEntry, peer verbs.GID) verbs.GIDEntry {
	first := func(ok func(verbs.GIDEntry) bool) verbs.GIDEntry {
		for _, e := range table {
			if ok(e) {
				return e
			}
		}
		return table[0]
	}
	ipv4 := func(g verbs.GID) bool { return g.Addr().Is4In6() }
	local := func(g verbs.GID) bool { return g.Addr().IsLinkLocalUnicast() }
	switch r {
	case GIDHintIPv4:
		return first(func(e verbs.GIDEntry) bool { return ipv4(e.GID) })
	case GIDMatched:
		return first(func(e verbs.GIDEntry) bool {
			return ipv4(e.GID) == ipv4(peer) && local(e.GID) == local(peer) && (local(peer) || e.Type != verbs.GIDRoCEv1)
		})
	case GIDPreferV2:
		return first(func(e verbs.GIDEntry) bool { return e.Type != verbs.GIDRoCEv1 && !local(e.GID) })
	}
	return table[0]
}
