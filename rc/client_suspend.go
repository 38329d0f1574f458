package rc

import (
	"context"
	"fmt"
	"time"

	"s3rdmafs/verbs"
)

// Suspend is called when the port can carry no transfers: those that run end at
// once with ErrSuspended and the Action that is safe, but for PUTs whose data has
// arrived and that only wait for the answer. Kept sessions are given up, and
// nothing is eligible until Resume. Reason is what EligibleGet and EligiblePut say.
func (c *Client) Suspend(reason string) {
	c.ep.suspend(reason)
	c.endIdle()
}

// Resume ends a suspension. What the endpoint's memory says against it is put to
// the test by the next transfer, as it may be due to the port.
func (c *Client) Resume() { c.ep.resume() }

// SetGID changes the own end of sessions made from now on, after the port's GID
// table changed. table replaces ClientOptions.GIDs. A GID that was chosen for the
// family of the endpoint stays as long as the port has it.
func (c *Client) SetGID(index int, gid verbs.GID, table []verbs.GIDEntry) {
	if c.ep.setGIDs(entryOf(table, index, gid), table) {
		c.endIdle()
	}
}

// entryOf returns the row of a GID table, without its type if it is not there.
func entryOf(table []verbs.GIDEntry, index int, gid verbs.GID) verbs.GIDEntry {
	for _, e := range table {
		if e.Index == index && e.GID == gid {
			return e
		}
	}
	return verbs.GIDEntry{Index: index, GID: gid}
}

// endIdle gives up all idle kept sessions, without waiting for it.
func (c *Client) endIdle() {
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	if c.closed {
		return
	}
	for _, s := range c.idle {
		s.expiry.Stop()
		c.ending.Go(func() { c.end(s) })
	}
	c.idle = nil
}

func (e *endpoint) suspend(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspended = reason
	e.epoch.Add(1)
	e.portLost(fmt.Errorf("%w: %s", ErrSuspended, reason))
}

func (e *endpoint) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.suspended == "" {
		return
	}
	e.suspended = ""
	e.port, e.portLost = context.WithCancelCause(context.Background())
	e.negativeUntil, e.noKeepUntil = time.Time{}, time.Time{}
	e.strikes, e.penalty = 0, strikeTime
}

// portContext ends, with ErrSuspended as its cause, when the port goes out of use.
func (e *endpoint) portContext() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.port
}

// setGIDs reports whether the own GID is another one now.
func (e *endpoint) setGIDs(own verbs.GIDEntry, table []verbs.GIDEntry) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gids = table
	for _, g := range table {
		if g == e.gid {
			return false
		}
	}
	if e.gid == own {
		return false
	}
	e.log.Info("own GID changed", "gid_index", own.Index, "gid", own.GID)
	e.gid = own
	e.epoch.Add(1)
	return true
}

// gidOfFamily chooses an own GID of the family.
func (e *endpoint) gidOfFamily(f family) (verbs.GIDEntry, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return gidOf(e.gids, f)
}
