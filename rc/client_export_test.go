package rc

import (
	"context"
	"net/netip"
	"time"
)

// SetLookup replaces the resolver of a client's endpoint, whose answers are then
// used for hold.
func (c *Client) SetLookup(hold time.Duration, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)) {
	c.control.resolver.lookup, c.control.resolver.hold = lookup, hold
}
