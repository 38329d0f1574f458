package doctor

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"s3rdmafs/verbs"
)

// StatusHelp is what is known about one status of a work completion.
type StatusHelp struct {
	Status  verbs.WCStatus `json:"code"`
	Name    string         `json:"name"` // as verbs prints it
	Meaning string         `json:"meaning"`
	Causes  []string       `json:"causes"` // the most likely first
	Checks  []string       `json:"checks"`
}

// StatusTable has an entry for each status, in the order of their numbers.
func StatusTable() []StatusHelp {
	out := make([]StatusHelp, len(statusHelp))
	for i, h := range statusHelp {
		h.Status = verbs.WCStatus(i)
		h.Name = h.Status.String()
		out[i] = h
	}
	return out
}

// LookupStatus finds entries by name, with or without IBV_WC_ and in any case,
// by number, or all of them by "all".
func LookupStatus(name string) ([]StatusHelp, error) {
	all := StatusTable()
	if strings.EqualFold(name, "all") {
		return all, nil
	}
	want := strings.TrimPrefix(strings.ToUpper(name), "IBV_WC_")
	var names []string
	for _, h := range all {
		if h.Name == want || strconv.Itoa(int(h.Status)) == want {
			return []StatusHelp{h}, nil
		}
		names = append(names, h.Name)
	}
	return nil, fmt.Errorf("no work-completion status %q; there are all, %s", name, strings.Join(names, ", "))
}

// PrintStatus writes an entry for people.
func PrintStatus(w io.Writer, h StatusHelp) {
	fmt.Fprintf(w, "%s (%d)\n  %s.\n", h.Name, h.Status, h.Meaning)
	for _, part := range []struct {
		title string
		lines []string
	}{{"usual causes, the most likely first", h.Causes}, {"check", h.Checks}} {
		if len(part.lines) == 0 {
			continue
		}
		fmt.Fprintf(w, "  %s:\n", part.title)
		for i, l := range part.lines {
			fmt.Fprintf(w, "    %d. %s\n", i+1, l)
		}
	}
}

const (
	checkServerLog = "the server's log at the same second: it saw the other half"
	checkDmesg     = "dmesg, and the adapter's counters (rdma statistic show, ethtool -S NETDEV)"
	causeBug       = "a fault in this program or in the driver"
	checkReport    = "report it, with the log at --log-level debug, rdma-core and firmware versions"
	onlyRD         = "cannot happen with RC queue pairs, which are all that this program makes"
)

// statusHelp is indexed by verbs.WCStatus. What each status means is the InfiniBand
// Architecture Specification's, vol. 1, sections 9.7 and 11.6; the causes are
// those of one-sided writes over RC, as this protocol makes them.
var statusHelp = [...]StatusHelp{
	verbs.WCSuccess: {
		Meaning: "the work request did what it was asked for",
		Causes:  []string{"nothing is wrong"},
		Checks:  []string{"nothing"},
	},
	verbs.WCLocLenErr: {
		Meaning: "a local buffer is too short for the message, or the message is longer than the port's max_msg_sz",
		Causes: []string{
			"a transfer larger than the port's largest message",
			"a receive with scatter entries shorter than what the peer sent (ours have none)",
		},
		Checks: []string{"max_msg_sz in ibv_devinfo -v against the size of the transfer", checkServerLog},
	},
	verbs.WCLocQPOpErr: {
		Meaning: "the adapter found the QP or the work request inconsistent with itself",
		Causes:  []string{causeBug, "firmware that does not know an opcode or flag", "more scatter entries than the QP was made for"},
		Checks:  []string{checkDmesg, "firmware and driver of the same generation (ibv_devinfo, modinfo)", checkReport},
	},
	verbs.WCLocEECOpErr: {Meaning: "end-to-end context of RD found inconsistent", Causes: []string{onlyRD}, Checks: []string{checkReport}},
	verbs.WCLocProtErr: {
		Meaning: "a local address or lkey of the work request is not covered by a valid memory region of the QP's protection domain",
		Causes:  []string{"the memory was deregistered while the transfer was under way", "address or length outside the region", "a region of another protection domain"},
		Checks:  []string{"whether the mount was just ending", checkReport},
	},
	verbs.WCWRFlushErr: {
		Meaning: "the QP went into the error state before this work request had its turn; it says nothing about the cause",
		Causes: []string{
			"an earlier work request of the same QP failed: its status is the one to look at",
			"the transfer was given up (deadline, cancelled read, error answer by HTTP) and the QP drained on purpose",
			"the peer's write was refused, or its packets did not fit the path MTU: the QP that is written to fails too",
			"the port went down or the device was reset",
		},
		Checks: []string{"other completion errors in s3rdmafs stat, and the first one in the log", "path MTU of both ends (s3rdmafs devices)", checkServerLog, checkDmesg},
	},
	verbs.WCMWBindErr: {
		Meaning: "binding a memory window failed",
		Causes:  []string{"this program binds none: " + causeBug},
		Checks:  []string{checkReport},
	},
	verbs.WCBadRespErr: {
		Meaning: "an answer came that fits no outstanding request",
		Causes:  []string{"packets of an earlier connection with the same QP number", "a faulty switch, firmware or software RoCE version"},
		Checks:  []string{"firmware versions of both ends", checkDmesg},
	},
	verbs.WCLocAccessErr: {
		Meaning: "the peer's write was refused by the local memory's access rights",
		Causes:  []string{"the region was registered without local write", causeBug},
		Checks:  []string{checkReport},
	},
	verbs.WCRemInvReqErr: {
		Meaning: "the peer's adapter refused the message as invalid: its QP does not allow the operation, or the message does not fit",
		Causes: []string{
			"the two ends use different path MTUs: up to the smaller one passes, one byte more fails at once, in both directions",
			"the peer's receive has too little room for the message",
			"the peer's QP does not allow remote writes",
			"the QP is not of the type the sender takes it for",
		},
		Checks: []string{
			"active MTU of both ports (s3rdmafs devices, ibv_devinfo) and a path MTU set by hand on either side: no header carries it, both must be equal",
			"with RoCE the netdev MTU on both hosts and every switch: RDMA takes the next smaller of 1024, 2048, 4096 below it",
			checkServerLog,
		},
	},
	verbs.WCRemAccessErr: {
		Meaning: "the peer's adapter refused access to the address: wrong rkey, outside the region, or without the right",
		Causes: []string{
			"the peer gave the memory up (timeout, session expired) while this side still wrote",
			"a transfer longer than the peer's region",
			"an rkey of another session or protection domain",
		},
		Checks: []string{"how long the transfer waited before its write (log at debug) against the server's session time", "clock and load of both ends", checkServerLog},
	},
	verbs.WCRemOpErr: {
		Meaning: "the peer's adapter could not do the operation for a reason of its own",
		Causes:  []string{"the peer's QP went into error or its memory failed in the middle", "a fault of the peer's adapter or driver"},
		Checks:  []string{checkServerLog, "dmesg on the server", checkDmesg},
	},
	verbs.WCRetryExcErr: {
		Meaning: "the transport retry counter ran out: packets were sent again and again and none was acknowledged",
		Causes: []string{
			"the peer's QP was not ready to receive: the server was slow to connect it, refused the session, or is gone",
			"no way for RoCE packets: wrong GID index, another RoCE version or address family at the peer, or a firewall that drops UDP port 4791",
			"the peer's GID belongs to a port on another network, or the route back is missing",
			"packets lost in a congested fabric without PFC or ECN",
			"a port that went down on the way; on InfiniBand a wrong LID or partition key",
		},
		Checks: []string{
			"s3rdmafs doctor s3://BUCKET, and in it GID, netdev and route to the endpoint",
			"the other way round, with the same GID indexes: rping or ib_write_bw -x INDEX between the two hosts",
			"nft list ruleset / iptables -L for UDP 4791, on both hosts and in the cloud's security group",
			"counters for lost packets and pauses (ethtool -S NETDEV | grep -e pause -e discard, rdma statistic show)",
			checkServerLog,
		},
	},
	verbs.WCRNRRetryExcErr: {
		Meaning: "the peer answered again and again that it has no receive posted",
		Causes: []string{
			"the peer connected its QP and then did not post its receive: stuck, overloaded, or ended",
			"two messages with immediate data where the peer expects one",
			"the peer asks for fewer repetitions than the usual 7, which means no limit",
		},
		Checks: []string{checkServerLog, "load of the server; its limits of sessions and memory"},
	},
	verbs.WCLocRDDViolErr:  {Meaning: "RD domains of QP and context differ", Causes: []string{onlyRD}, Checks: []string{checkReport}},
	verbs.WCRemInvRDReqErr: {Meaning: "the peer refused an invalid RD message", Causes: []string{onlyRD}, Checks: []string{checkReport}},
	verbs.WCRemAbortErr: {
		Meaning: "the peer aborted the operation",
		Causes:  []string{"the server's process or adapter was reset in the middle"},
		Checks:  []string{checkServerLog, "dmesg on the server"},
	},
	verbs.WCInvEECNErr:     {Meaning: "invalid end-to-end context number of RD", Causes: []string{onlyRD}, Checks: []string{checkReport}},
	verbs.WCInvEECStateErr: {Meaning: "invalid state of an end-to-end context of RD", Causes: []string{onlyRD}, Checks: []string{checkReport}},
	verbs.WCFatalErr: {
		Meaning: "the adapter or the QP failed for good; the device must be opened anew",
		Causes:  []string{"a fatal error of the adapter: firmware, PCIe, overheating", "the driver was reset or unloaded (hot unplug, firmware update)"},
		Checks:  []string{checkDmesg, "lspci -vv for link errors", "restart the mount once the device is back"},
	},
	verbs.WCRespTimeoutErr: {
		Meaning: "the peer's adapter acknowledged but never finished answering",
		Causes:  []string{"a peer that is overloaded or hung", "a fault of the peer's adapter"},
		Checks:  []string{checkServerLog, "dmesg on the server"},
	},
	verbs.WCGeneralErr: {
		Meaning: "an error that fits no other status; the vendor's code in the log says more",
		Causes:  []string{"a fault of adapter, firmware or driver", "a completion queue that overflowed"},
		Checks:  []string{"the vendor's error code in the log, in the vendor's manual", checkDmesg, checkReport},
	},
}
