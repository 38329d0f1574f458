package shm

import (
	"fmt"

	"s3rdmafs/verbs"
)

// SetPortUp takes the link of the port away and gives it back, with the event
// that a device has for it. While it is down nothing that is sent arrives, in
// either direction; QPs stay as they are, and fail when their retries are used up.
// The device must be open.
func (d *Device) SetPortUp(up bool) {
	if d.down.Swap(!up) == !up {
		return
	}
	e := verbs.Event{Type: verbs.EventPortError, Port: 1}
	if up {
		e.Type = verbs.EventPortActive
	}
	d.emit(e)
}

// FailQP moves a QP to ERR with a fatal event, as after an error inside of the
// device.
func (d *Device) FailQP(qpn uint32) error {
	q := d.qpByNum(qpn)
	if q == nil {
		return fmt.Errorf("%w: no QP %d", verbs.ErrInvalid, qpn)
	}
	q.fail()
	return nil
}

// Emit delivers an event that nothing has caused. The device must be open.
func (d *Device) Emit(e verbs.Event) { d.emit(e) }
