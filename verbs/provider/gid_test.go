package provider

import (
	"net/netip"
	"testing"

	"s3rdmafs/verbs"
)

func gid(s string) verbs.GID { return verbs.GID(netip.MustParseAddr(s).As16()) }

func TestFamilyOf(t *testing.T) {
	for addr, want := range map[string]Family{
		"::ffff:10.77.0.1":     FamilyIPv4,
		"fe80::2:1":            FamilyLinkLocal,
		"febf::1":              FamilyLinkLocal,
		"fec0::1":              FamilyGlobal,
		"2001:db8::1":          FamilyGlobal,
		"fd00::1":              FamilyGlobal,
		"fd73:686d::1":         FamilySoftware,
		"fd73:686d:ffff::abcd": FamilySoftware,
		"fd73:686e::1":         FamilyGlobal,
	} {
		if got := FamilyOf(gid(addr)); got != want {
			t.Errorf("%s is %s, want %s", addr, got, want)
		}
	}
}

func TestChooseGID(t *testing.T) {
	const v1, v2, ib = verbs.GIDRoCEv1, verbs.GIDRoCEv2, verbs.GIDInfiniBand
	roce := []verbs.GIDEntry{
		{Index: 0, GID: gid("fe80::1"), Type: v1},
		{Index: 1, GID: gid("fe80::1"), Type: v2},
		{Index: 2, GID: gid("::ffff:10.0.0.1"), Type: v1},
		{Index: 3, GID: gid("::ffff:10.0.0.1"), Type: v2},
		{Index: 4, GID: gid("2001:db8::1"), Type: v2},
		{Index: 5, GID: gid("::ffff:10.0.0.2"), Type: v2},
	}
	for _, c := range []struct {
		name    string
		entries []verbs.GIDEntry
		family  Family
		want    int // index; -1: none
	}{
		{"IPv4 first", roce, FamilyAny, 3},
		{"IPv4", roce, FamilyIPv4, 3},
		{"global", roce, FamilyGlobal, 4},
		{"link-local: v2 before v1", roce, FamilyLinkLocal, 1},
		{"software on a card", roce, FamilySoftware, -1},
		{"global before link-local", append(roce[:2:2], roce[4]), FamilyAny, 4},
		{"v2 link-local before v1 IPv4", roce[:3], FamilyAny, 1},
		{"v1 only, link-local asked", roce[:1], FamilyLinkLocal, 0},
		{"v1 IPv4 before v1 link-local", []verbs.GIDEntry{roce[0], roce[2]}, FamilyAny, 2},
		{"InfiniBand", []verbs.GIDEntry{{Index: 0, GID: gid("fe80::7"), Type: ib}, {Index: 1, GID: gid("2001:db8::7"), Type: ib}}, FamilyAny, 0},
		{"software", []verbs.GIDEntry{{Index: 0, GID: gid("fd73:686d::7"), Type: verbs.GIDSoftware}}, FamilyAny, 0},
		{"empty table", nil, FamilyAny, -1},
	} {
		e, ok := ChooseGID(c.entries, c.family)
		if ok != (c.want >= 0) || ok && e.Index != c.want {
			t.Errorf("%s: %+v, %t; want index %d", c.name, e, ok, c.want)
		}
	}
	if roce[0].Index != 0 || roce[5].Index != 5 {
		t.Error("the table was changed")
	}
}
