package provider

import (
	"cmp"
	"slices"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// Family is the address family of a GID. Both ends of a connection need the
// same one (protocol section 12.4).
type Family uint8

const (
	// FamilyAny stands for every family in a choice; no GID is of it.
	FamilyAny Family = iota
	// FamilyIPv4 is ::ffff:a.b.c.d.
	FamilyIPv4
	// FamilyGlobal is any other IPv6 address, or an InfiniBand subnet prefix.
	FamilyGlobal
	// FamilyLinkLocal is fe80::/10, also the default InfiniBand subnet prefix.
	FamilyLinkLocal
	// FamilySoftware is the prefix of software devices, which no network routes.
	FamilySoftware
)

func (f Family) String() string {
	switch f {
	case FamilyIPv4:
		return "IPv4-mapped"
	case FamilyGlobal:
		return "global"
	case FamilyLinkLocal:
		return "link-local"
	case FamilySoftware:
		return "software"
	}
	return "any"
}

// FamilyOf returns the family of g.
func FamilyOf(g verbs.GID) Family {
	a := g.Addr()
	switch {
	case shm.IsGID(g):
		return FamilySoftware
	case a.Is4In6():
		return FamilyIPv4
	case a.IsLinkLocalUnicast():
		return FamilyLinkLocal
	}
	return FamilyGlobal
}

// ChooseGID picks the best entry of one family, or of any, in the order of
// protocol section 12.4: RoCE v2 with IPv4-mapped, global, link-local address, then
// RoCE v1 likewise; on an InfiniBand port the lowest index. It reports false
// when no entry is of the family.
func ChooseGID(entries []verbs.GIDEntry, family Family) (verbs.GIDEntry, bool) {
	fit := slices.DeleteFunc(slices.Clone(entries), func(e verbs.GIDEntry) bool {
		return family != FamilyAny && FamilyOf(e.GID) != family
	})
	if len(fit) == 0 {
		return verbs.GIDEntry{}, false
	}
	return slices.MinFunc(fit, compareGIDs), true
}

func compareGIDs(a, b verbs.GIDEntry) int {
	return cmp.Or(
		cmp.Compare(typeRank(a.Type), typeRank(b.Type)),
		cmp.Compare(familyRank(a), familyRank(b)),
		cmp.Compare(a.Index, b.Index),
	)
}

func typeRank(t verbs.GIDType) int {
	if t == verbs.GIDRoCEv1 {
		return 1
	}
	return 0
}

func familyRank(e verbs.GIDEntry) Family {
	if e.Type == verbs.GIDInfiniBand {
		return FamilyAny
	}
	return FamilyOf(e.GID)
}
