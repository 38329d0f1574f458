package rc

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// cause is what ended a transfer.
type cause uint8

const (
	causeAnswer     cause = iota // an answer other than success
	causeNoAnswer                // connection refused, reset, …
	causeMalformed               // a success that breaks the protocol
	causeConnect                 // own QP did not reach RTS, or no GID of the family
	causeCompletion              // a work request failed or its completion is wrong
	causeDeadline                // own allowance used up
	causeChecksum                // bytes differ
	causeLocal                   // own resources: no QP, post refused, no credentials
	causeCaller                  // the caller's context ended
	causeSuspended               // own port out of use
	causeLacking                 // the server that answered PREPARE has not what is needed
)

// failure is why a transfer failed, before it is judged.
type failure struct {
	phase  Phase
	cause  cause
	answer *answer // with causeAnswer
	err    error
	kept   bool // it ran in a kept session
	// maybeStored: a PUT of which the server may have everything.
	maybeStored bool
	// moved: the own write completed, so an answer is about storing.
	moved bool
}

// memory is what the endpoint's memory learns from a failure.
type memory uint8

const (
	memoryNone     memory = iota
	memoryNegative        // does not speak it
	memoryStranger        // perhaps does not speak it
	memoryOutage
	memoryStrike
	memoryThrottle
	memoryLimit
)

// verdict is the row of section 17.3 (and of doc/PROTOCOL.md 5.4) for a failure.
type verdict struct {
	action Action
	again  bool // one more try with a fresh session, if there was none yet
	memory memory
}

func decide(op Op, f *failure, spoken bool) verdict {
	// A PUT that may be stored is never simply done again.
	doubt := func(v verdict) verdict {
		if f.maybeStored {
			v.action, v.again = ActionUnknown, false
		}
		return v
	}
	switch f.cause {
	case causeCaller:
		return doubt(verdict{action: ActionFail})
	case causeLocal, causeSuspended, causeLacking:
		return doubt(verdict{action: ActionHTTP})
	}
	if f.phase == PhasePrepare {
		return decidePrepare(f, spoken)
	}
	if f.cause == causeAnswer {
		return doubt(decideReady(op, f))
	}
	if f.kept && f.cause != causeDeadline {
		// The fresh session tells whether it is the endpoint or only this session.
		return doubt(verdict{action: ActionHTTP, again: true})
	}
	return doubt(verdict{action: ActionHTTP, memory: memoryStrike})
}

func decidePrepare(f *failure, spoken bool) verdict {
	switch f.cause {
	case causeNoAnswer, causeDeadline:
		return verdict{memory: memoryOutage}
	case causeMalformed, causeConnect:
		return verdict{memory: memoryNegative}
	}
	a := f.answer
	switch {
	case a.status == http.StatusNotImplemented && token.IsMarker(a.header):
		if spoken {
			return verdict{} // about this object only
		}
		return verdict{memory: memoryNegative}
	case a.status == http.StatusPreconditionFailed:
		return verdict{action: ActionFail}
	case a.status == http.StatusRequestEntityTooLarge:
		return verdict{memory: memoryLimit}
	case a.status == http.StatusTooManyRequests, a.status == http.StatusServiceUnavailable:
		return verdict{memory: memoryThrottle}
	case a.status == http.StatusConflict:
		return verdict{again: true}
	case strangerStatus(a.status):
		if spoken || a.header.Get(token.HeaderProtocol) != "" {
			return verdict{}
		}
		return verdict{memory: memoryStranger}
	case a.status >= 500:
		return verdict{memory: memoryOutage}
	case a.status < 300:
		return verdict{memory: memoryNegative}
	}
	return verdict{}
}

func decideReady(op Op, f *failure) verdict {
	a := f.answer
	switch a.status {
	case http.StatusPreconditionFailed:
		return verdict{action: ActionFail}
	case http.StatusNotFound:
		// In a kept session, and about a PUT's data, it can be S3's.
		if (f.kept || f.moved) && !sessionCode(a.code) {
			break
		}
		return verdict{again: true}
	case http.StatusConflict:
		if f.moved && a.code != "" && !sessionCode(a.code) {
			break
		}
		return verdict{again: true}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return verdict{memory: memoryThrottle}
	case http.StatusRequestEntityTooLarge:
		return verdict{memory: memoryLimit}
	case http.StatusRequestTimeout, http.StatusBadGateway:
		return verdict{again: f.kept, memory: memoryStrike}
	case http.StatusInternalServerError:
		if op == OpPut && f.moved && a.code != "" && !sessionCode(a.code) {
			break
		}
		return verdict{again: f.kept, memory: memoryStrike}
	}
	if op == OpPut && f.moved && a.code != "" && !sessionCode(a.code) {
		return verdict{action: ActionFail} // F8: storing failed
	}
	return verdict{}
}

// protocolCode tells codes that only a server of this protocol gives.
func protocolCode(code string) bool { return strings.Contains(code, "Rdma") }

// sessionCode tells codes about the session from those about the object.
func sessionCode(code string) bool {
	switch code {
	case "NoSuchRdmaSession", "RdmaCookieMismatch", "RdmaSessionConflict", "RdmaSequenceConflict",
		"RdmaTransferInProgress", "RdmaPeerBusy", "RdmaTransferFailed", "InvalidRdmaRequest",
		"RdmaResourceLimit", "RdmaServiceUnavailable", "RequestTimeout", "SlowDown":
		return true
	}
	return false
}

// judge applies the verdict to the endpoint's memory and makes the caller's error.
// unsafe is nil, or why the memory of the transfer is still exposed.
func (c *Client) judge(t *transfer, f *failure, unsafe error, retried bool) (err *Error, again bool) {
	v := decide(t.op, f, c.ep.hasSpoken())
	if unsafe != nil {
		v.again = false
	}
	e := &Error{Op: t.op, Phase: f.phase, Action: v.action, Err: f.err}
	if a := f.answer; a != nil {
		e.Status, e.Code, e.Message = a.status, a.code, a.message
		if a.status == http.StatusPreconditionFailed {
			e.Err = ErrPrecondition
		}
	}
	if unsafe != nil {
		e.Err = errors.Join(e.Err, unsafe)
	}
	if v.again && !retried {
		return e, true
	}
	switch v.memory {
	case memoryNegative:
		c.ep.refuse(negativeTime, e.Error())
	case memoryStranger:
		c.ep.stranger(strangerReason(e.Status, e.Code))
	case memoryOutage:
		c.ep.refuse(outageTime, e.Error())
	case memoryStrike:
		c.ep.strike(e.Error())
	case memoryThrottle:
		c.slots.throttle()
	case memoryLimit:
		c.ep.limit(t.op, int64(len(t.seg.Buf)))
	}
	if v.action != ActionFail {
		c.ep.fellBack(f.label())
	}
	return e, false
}

// label names a failure for the counters.
func (f *failure) label() string {
	if f.answer != nil {
		return fmt.Sprintf("%s status %d", f.phase, f.answer.status)
	}
	names := [...]string{"answer", "no answer", "malformed answer", "connect", "completion", "deadline", "checksum", "local", "caller", "port out of use", "extension gone"}
	return f.phase.String() + " " + names[f.cause]
}

// exposed filters the errors of giving a QP back: only one kind matters to the
// caller's memory.
func exposed(err error) error {
	if errors.Is(err, verbs.ErrUnsafe) {
		return err
	}
	return nil
}
