package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// GID is a port address in network order, as the GID table of a port holds it.
type GID [16]byte

// IsZero reports whether no GID is set.
func (g GID) IsZero() bool { return g == GID{} }

// Addr returns the GID as an IPv6 address; IPv4-mapped GIDs stay mapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g) }

func (g GID) String() string { return g.Addr().String() }

// Access are the rights of a memory region or of the remote side of a QP
// (enum ibv_access_flags).
type Access uint32

const (
	AccessLocalWrite  Access = 1 << 0
	AccessRemoteWrite Access = 1 << 1
	AccessRemoteRead  Access = 1 << 2
)

// QPState is enum ibv_qp_state.
type QPState uint8

const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateErr
)

func (s QPState) String() string {
	names := [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("QPState(%d)", uint8(s))
}

// MTU is enum ibv_mtu: 1 = 256 … 5 = 4096.
type MTU uint8

const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the MTU in bytes.
func (m MTU) Bytes() int { return 128 << m }

// ParseMTU returns the MTU of n bytes; false if there is none.
func ParseMTU(n int) (MTU, bool) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == n {
			return m, true
		}
	}
	return 0, false
}

// PortState is enum ibv_port_state.
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (s PortState) String() string {
	names := [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("PortState(%d)", uint8(s))
}

// LinkLayer is the kind of fabric of a port.
type LinkLayer uint8

const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

func (l LinkLayer) String() string {
	switch l {
	case LinkInfiniBand:
		return "InfiniBand"
	case LinkEthernet:
		return "Ethernet"
	}
	return "unspecified"
}

// GIDType is the RoCE version of a GID table entry.
type GIDType uint8

const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1
	GIDRoCEv2
	// GIDSoftware marks the entry of the software device, reachable on one host.
	GIDSoftware
)

func (t GIDType) String() string {
	names := [...]string{"IB", "RoCE v1", "RoCE v2", "software"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("GIDType(%d)", uint8(t))
}

// GIDEntry is one valid row of a port's GID table.
type GIDEntry struct {
	Index  int
	GID    GID
	Type   GIDType
	NetDev string // "" when none
}

// DeviceAttr are the limits of a device (struct ibv_device_attr).
type DeviceAttr struct {
	FirmwareVersion string
	NumPorts        int
	MaxQP           int
	MaxQPWR         int
	MaxSGE          int
	MaxCQ           int
	MaxCQE          int
	MaxMR           int
	MaxPD           int
	MaxMRSize       uint64 // bytes
}

// PortAttr is the state of one port (struct ibv_port_attr).
type PortAttr struct {
	State     PortState
	ActiveMTU MTU
	MaxMsgSz  uint32 // bytes
	LID       uint16
	LinkLayer LinkLayer
	GIDTblLen int
}

// Event is an asynchronous event of a device.
type Event struct {
	Type EventType
	Port uint8  // for port events
	QPN  uint32 // for QP events
}

// EventType is the part of enum ibv_event_type that concerns this project.
type EventType uint8

const (
	EventOther EventType = iota
	EventPortActive
	EventPortError
	EventQPFatal
	EventCQError
	EventDeviceFatal
	EventGIDChange
)

func (t EventType) String() string {
	names := [...]string{"other", "port active", "port error", "QP fatal", "CQ error", "device fatal", "GID change"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("EventType(%d)", uint8(t))
}

// Device is an opened RDMA device. All methods may be called concurrently.
// Close fails with ErrBusy while objects made from it exist.
type Device interface {
	// Name is the device's name: "mlx5_0", "rxe0", "shm".
	Name() string
	// Provider is the name of the implementation: "ibv" or "shm".
	Provider() string
	Attr() DeviceAttr
	// Port reads the present state of port n, counted from 1.
	Port(n uint8) (PortAttr, error)
	// GIDs reads the valid entries of the GID table of port n.
	GIDs(n uint8) ([]GIDEntry, error)
	AllocPD() (PD, error)
	CreateCompChannel() (CompChannel, error)
	// CreateCQ makes a completion queue of at least depth entries; ch may be nil.
	CreateCQ(depth int, ch CompChannel) (CQ, error)
	// Events delivers asynchronous events; closed by Close. Events are
	// dropped when nobody reads.
	Events() <-chan Event
	Close() error
}

// PD is a protection domain: regions and queue pairs of one PD work together.
type PD interface {
	// RegMR registers mem.Bytes()[off:off+length] for RDMA. The memory must
	// stay open until the MR is closed. Safe for concurrent use.
	RegMR(mem *Memory, off, length int, access Access) (MR, error)
	CreateQP(init QPInitAttr) (QP, error)
	// Close frees the PD; ErrBusy while MRs or QPs of it exist.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	LKey() uint32
	RKey() uint32
	// Addr is the IOVA of the first byte, to be told to a peer.
	Addr() uint64
	// Bytes is the registered memory itself; len(Bytes()) is the MR's length.
	Bytes() []byte
	// Close deregisters; from then on neither key gives access, and a
	// WRITE that is under way has ended.
	Close() error
}

// CompChannel tells when a CQ armed by ReqNotify has a new completion.
type CompChannel interface {
	// Wait blocks until a CQ had an event, and acknowledges it. It ends with
	// ctx's error, or ErrClosed after Close.
	Wait(ctx context.Context) (CQ, error)
	Close() error
}

// CQ is a completion queue, shared by any number of QPs.
type CQ interface {
	// Poll takes up to len(wc) completions and never blocks.
	// ErrCQOverrun means the queue overflowed and is of no more use.
	Poll(wc []WC) (int, error)
	// ReqNotify arms the channel for the next completion. A completion that
	// came between the last Poll and ReqNotify gives no event: poll again.
	ReqNotify() error
	Depth() int
	// Close fails with ErrBusy while QPs use the CQ.
	Close() error
}

// QPCap are the limits of one QP.
type QPCap struct {
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
}

// QPInitAttr describes an RC QP to create.
type QPInitAttr struct {
	SendCQ, RecvCQ CQ
	Cap            QPCap
	// SigAll makes each send work request signaled.
	SigAll bool
}

// AHAttr is the address of the other side (struct ibv_ah_attr).
type AHAttr struct {
	DGID         GID
	SGIDIndex    int
	DLID         uint16
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8
	SrcPathBits  uint8
	IsGlobal     bool
	PortNum      uint8
}

// QPAttrMask is enum ibv_qp_attr_mask: which fields of QPAttr are given.
type QPAttrMask uint32

const (
	AttrState           QPAttrMask = 1 << 0
	AttrAccessFlags     QPAttrMask = 1 << 3
	AttrPKeyIndex       QPAttrMask = 1 << 4
	AttrPort            QPAttrMask = 1 << 5
	AttrAV              QPAttrMask = 1 << 7
	AttrPathMTU         QPAttrMask = 1 << 8
	AttrTimeout         QPAttrMask = 1 << 9
	AttrRetryCnt        QPAttrMask = 1 << 10
	AttrRNRRetry        QPAttrMask = 1 << 11
	AttrRQPSN           QPAttrMask = 1 << 12
	AttrMaxQPRdAtomic   QPAttrMask = 1 << 13
	AttrMinRNRTimer     QPAttrMask = 1 << 15
	AttrSQPSN           QPAttrMask = 1 << 16
	AttrMaxDestRdAtomic QPAttrMask = 1 << 17
	AttrDestQPN         QPAttrMask = 1 << 20
	MaskInit                       = AttrState | AttrPKeyIndex | AttrPort | AttrAccessFlags
	MaskRTR                        = AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer
	MaskRTS                        = AttrState | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxQPRdAtomic
)

// QPAttr are the attributes that ModifyQP sets (struct ibv_qp_attr).
type QPAttr struct {
	State           QPState
	AccessFlags     Access
	PKeyIndex       uint16
	Port            uint8
	AH              AHAttr
	PathMTU         MTU
	DestQPN         uint32
	RQPSN, SQPSN    uint32
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	MinRNRTimer     uint8
	Timeout         uint8 // 4.096 µs × 2^Timeout
	RetryCnt        uint8
	RNRRetry        uint8 // 7 = without end
}

// QP is a reliable-connection queue pair. All methods may be called
// concurrently.
type QP interface {
	Num() uint32
	// Modify changes the attributes in mask. A missing or superfluous
	// attribute for the transition is ErrInvalid, as with ibv_modify_qp.
	Modify(attr QPAttr, mask QPAttrMask) error
	// State reads the present state.
	State() (QPState, error)
	PostSend(wr SendWR) error
	PostRecv(wr RecvWR) error
	// Close destroys the QP. No packet touches memory through it afterwards;
	// completions still in the CQ may vanish.
	Close() error
}

// Opcode of a send work request (enum ibv_wr_opcode).
type Opcode uint8

const (
	OpWrite Opcode = iota
	OpWriteWithImm
)

// SGE is a piece of local registered memory.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a send work request. Imm is in host order: the provider puts
// it on the wire most significant byte first.
type SendWR struct {
	ID         uint64
	Opcode     Opcode
	SGEs       []SGE
	RemoteAddr uint64
	RKey       uint32
	Imm        uint32
	Signaled   bool
}

// RecvWR is a receive work request; zero SGEs are enough for a WRITE WITH IMM.
type RecvWR struct {
	ID   uint64
	SGEs []SGE
}

// WCStatus is enum ibv_wc_status.
type WCStatus uint8

const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

func (s WCStatus) String() string {
	names := [...]string{
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR",
		"WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR",
		"REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",
		"REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR",
		"RESP_TIMEOUT_ERR", "GENERAL_ERR",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("WCStatus(%d)", uint8(s))
}

// WCOpcode is the kind of a completed work request. The values are those of
// enum ibv_wc_opcode.
type WCOpcode uint32

const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

// WCFlags of a completion (enum ibv_wc_flags); test bits, never equality.
type WCFlags uint32

const (
	WCFlagGRH     WCFlags = 1 << 0
	WCFlagWithImm WCFlags = 1 << 1
)

// WC is a work completion. When Status is not WCSuccess, only ID, Status,
// QPN and VendorErr mean anything.
type WC struct {
	ID        uint64
	Status    WCStatus
	Opcode    WCOpcode
	VendorErr uint32
	ByteLen   uint32
	Imm       uint32 // host order; valid with WCFlagWithImm
	QPN       uint32
	Flags     WCFlags
}

var (
	// ErrInvalid: an argument or attribute is wrong, or does not fit the state (EINVAL).
	ErrInvalid = errors.New("verbs: invalid argument")
	// ErrQueueFull: more work requests than the QP was made for (ENOMEM from post).
	ErrQueueFull = errors.New("verbs: work queue full")
	// ErrNoResource: a limit of device or process is reached (ENOMEM, EMFILE).
	ErrNoResource = errors.New("verbs: out of resources")
	// ErrMemlock: registration would exceed RLIMIT_MEMLOCK.
	ErrMemlock = errors.New("verbs: locked-memory limit reached")
	// ErrBusy: objects that depend on this one still exist.
	ErrBusy = errors.New("verbs: object in use")
	// ErrClosed: the object was closed.
	ErrClosed = errors.New("verbs: closed")
	// ErrCQOverrun: a completion queue overflowed.
	ErrCQOverrun = errors.New("verbs: completion queue overrun")
	// ErrNoDevice: no RDMA device of that name.
	ErrNoDevice = errors.New("verbs: no such device")
	// ErrUnreachable: no route from the own GID to the peer's.
	ErrUnreachable = errors.New("verbs: peer not reachable")
	// ErrUnsafe: a QP could neither be drained nor destroyed. The device may
	// still access memory through it, which must stay allocated and registered.
	ErrUnsafe = errors.New("verbs: device may still access memory")
	// ErrUnsupported: this build or machine cannot do it.
	ErrUnsupported = errors.New("verbs: not supported")
)
