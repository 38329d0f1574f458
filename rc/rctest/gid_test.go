package rctest

import (
	"testing"

	"s3rdmafs/verbs"
)

// TestGIDRules is section 12.4: what each server puts into its token.
func TestGIDRules(t *testing.T) {
	local := verbs.GID{0: 0xfe, 1: 0x80, 15: 1}
	mapped := verbs.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 20}
	global := verbs.GID{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: 1}
	table := []verbs.GIDEntry{
		{Index: 0, GID: local, Type: verbs.GIDRoCEv1}, {Index: 1, GID: local, Type: verbs.GIDRoCEv2},
		{Index: 2, GID: mapped, Type: verbs.GIDRoCEv1}, {Index: 3, GID: mapped, Type: verbs.GIDRoCEv2},
		{Index: 4, GID: global, Type: verbs.GIDRoCEv2},
	}
	for _, c := range []struct {
		server Profile
		peer   verbs.GID
		want   int
	}{
		{VGW, mapped, 0}, {VGW, global, 0}, {HIPRef, mapped, 0},
		{VGWHint, mapped, 2}, {VGWHint, local, 2},
		{ELB, mapped, 3}, {ELB, local, 0}, {ELB, global, 4},
		{RGW, mapped, 3}, {RGW, local, 3},
	} {
		if got := c.server.GID.choose(table, c.peer).Index; got != c.want {
			t.Errorf("%s for %v: index %d, want %d", c.server.Name, c.peer.Addr(), got, c.want)
		}
	}
}
