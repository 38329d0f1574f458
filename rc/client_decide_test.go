package rc

import (
	"net/http"
	"testing"

	"s3rdmafs/token"
)

// TestDecide has the rows of section 17.3 and of doc/PROTOCOL.md 5.4.
func TestDecide(t *testing.T) {
	marker := http.Header{token.HeaderProtocolStatus: {token.StatusUnsupported}}
	echo := http.Header{token.HeaderProtocol: {token.Protocol}}
	reply := func(status int, code string, h http.Header) *answer {
		return &answer{status: status, code: code, header: h}
	}
	prepare := func(a *answer) failure { return failure{phase: PhasePrepare, answer: a} }
	ready := func(a *answer) failure { return failure{phase: PhaseReady, answer: a} }
	kept := func(f failure) failure { f.kept = true; return f }
	moved := func(f failure) failure { f.moved = true; f.phase = PhaseFinal; return f }
	stored := func(f failure) failure { f.maybeStored = true; return f }
	for _, c := range []struct {
		name   string
		op     Op
		f      failure
		spoken bool
		want   verdict
	}{
		{"prepare: marker, new", OpGet, prepare(reply(501, "", marker)), false, verdict{memory: memoryNegative}},
		{"prepare: marker, worked before", OpGet, prepare(reply(501, "", marker)), true, verdict{}},
		{"prepare: 501 without marker", OpGet, prepare(reply(501, "", nil)), false, verdict{memory: memoryStranger}},
		{"prepare: 400, new", OpGet, prepare(reply(400, "", nil)), false, verdict{memory: memoryStranger}},
		{"prepare: 400 with echo", OpGet, prepare(reply(400, "", echo)), false, verdict{}},
		{"prepare: 405, new", OpPut, prepare(reply(405, "", nil)), false, verdict{memory: memoryStranger}},
		{"prepare: redirect, new", OpPut, prepare(reply(307, "", nil)), false, verdict{memory: memoryStranger}},
		{"prepare: 404, worked before", OpGet, prepare(reply(404, "NoSuchKey", nil)), true, verdict{}},
		{"prepare: 403", OpGet, prepare(reply(403, "AccessDenied", nil)), false, verdict{}},
		{"prepare: 412", OpPut, prepare(reply(412, "PreconditionFailed", nil)), true, verdict{action: ActionFail}},
		{"prepare: 413", OpPut, prepare(reply(413, "", nil)), true, verdict{memory: memoryLimit}},
		{"prepare: 416", OpGet, prepare(reply(416, "", nil)), true, verdict{}},
		{"prepare: 429", OpGet, prepare(reply(429, "", nil)), true, verdict{memory: memoryThrottle}},
		{"prepare: 503", OpGet, prepare(reply(503, "", nil)), true, verdict{memory: memoryThrottle}},
		{"prepare: 500", OpGet, prepare(reply(500, "", nil)), true, verdict{memory: memoryOutage}},
		{"prepare: no answer", OpGet, failure{cause: causeNoAnswer}, true, verdict{memory: memoryOutage}},
		{"prepare: checks", OpGet, failure{cause: causeMalformed}, true, verdict{memory: memoryNegative}},
		{"prepare: RTR", OpGet, failure{cause: causeConnect}, true, verdict{memory: memoryNegative}},
		{"prepare: own resources", OpGet, failure{cause: causeLocal}, true, verdict{}},
		{"prepare: extension gone", OpPut, failure{cause: causeLacking}, true, verdict{}},
		{"prepare: caller", OpPut, failure{cause: causeCaller}, true, verdict{action: ActionFail}},

		{"ready: 404", OpPut, ready(reply(404, "NoSuchRdmaSession", nil)), true, verdict{again: true}},
		{"ready: 409", OpGet, ready(reply(409, "RdmaPeerBusy", nil)), true, verdict{again: true}},
		{"ready: 403", OpGet, ready(reply(403, "AccessDenied", nil)), true, verdict{}},
		{"ready: 412", OpPut, moved(ready(reply(412, "PreconditionFailed", nil))), true, verdict{action: ActionFail}},
		{"ready: 429", OpGet, ready(reply(429, "", nil)), true, verdict{memory: memoryThrottle}},
		{"ready: 408", OpGet, ready(reply(408, "", nil)), true, verdict{memory: memoryStrike}},
		{"ready: 502", OpPut, ready(reply(502, "RdmaTransferFailed", nil)), true, verdict{memory: memoryStrike}},
		{"ready: 500 before the data moved", OpPut, ready(reply(500, "InternalError", nil)), true, verdict{memory: memoryStrike}},
		{"final: PUT not stored", OpPut, moved(ready(reply(500, "InternalError", nil))), true, verdict{action: ActionFail}},
		{"final: PUT not stored, quota", OpPut, moved(ready(reply(403, "QuotaExceeded", nil))), true, verdict{action: ActionFail}},
		{"final: PUT not stored, upload gone", OpPut, moved(ready(reply(404, "NoSuchUpload", nil))), true, verdict{action: ActionFail}},
		{"final: PUT, wire error", OpPut, moved(ready(reply(500, "", nil))), true, verdict{memory: memoryStrike}},
		{"final: PUT, proxy", OpPut, stored(moved(ready(reply(504, "", nil)))), true, verdict{action: ActionUnknown}},
		{"ready: no answer", OpGet, failure{phase: PhaseReady, cause: causeNoAnswer}, true, verdict{memory: memoryStrike}},
		{"ready: PUT, no answer", OpPut, stored(failure{phase: PhaseFinal, cause: causeNoAnswer}), true, verdict{action: ActionUnknown, memory: memoryStrike}},
		{"data: completion", OpGet, failure{phase: PhaseData, cause: causeCompletion}, true, verdict{memory: memoryStrike}},
		{"data: deadline", OpGet, failure{phase: PhaseData, cause: causeDeadline}, true, verdict{memory: memoryStrike}},
		{"data: PUT, caller", OpPut, stored(failure{phase: PhaseData, cause: causeCaller}), true, verdict{action: ActionUnknown}},
		{"data: GET, caller", OpGet, failure{phase: PhaseData, cause: causeCaller}, true, verdict{action: ActionFail}},
		{"final: malformed", OpGet, failure{phase: PhaseFinal, cause: causeMalformed}, true, verdict{memory: memoryStrike}},
		{"final: checksum of a PUT", OpPut, stored(failure{phase: PhaseFinal, cause: causeChecksum}), true, verdict{action: ActionUnknown, memory: memoryStrike}},

		{"next: session gone", OpPut, kept(ready(reply(404, "NoSuchRdmaSession", nil))), true, verdict{again: true}},
		{"next: no such key", OpGet, kept(ready(reply(404, "NoSuchKey", nil))), true, verdict{}},
		{"next: sequence", OpGet, kept(ready(reply(409, "RdmaSequenceConflict", nil))), true, verdict{again: true}},
		{"next: 502", OpGet, kept(ready(reply(502, "RdmaTransferFailed", nil))), true, verdict{again: true, memory: memoryStrike}},
		{"next: GET, no answer", OpGet, kept(failure{phase: PhaseReady, cause: causeNoAnswer}), true, verdict{again: true}},
		{"next: PUT not sent", OpPut, kept(failure{phase: PhaseReady, cause: causeNoAnswer}), true, verdict{again: true}},
		{"next: PUT, no answer", OpPut, kept(stored(failure{phase: PhaseReady, cause: causeNoAnswer})), true, verdict{action: ActionUnknown}},
		{"next: PUT, completion", OpPut, kept(stored(failure{phase: PhaseData, cause: causeCompletion})), true, verdict{action: ActionUnknown}},
		{"next: deadline", OpGet, kept(failure{phase: PhaseData, cause: causeDeadline}), true, verdict{memory: memoryStrike}},
	} {
		if got := decide(c.op, &c.f, c.spoken); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
