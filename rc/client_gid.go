package rc

import (
	"s3rdmafs/verbs"
)

// family is the address family of a RoCE GID (section 12.4).
type family uint8

const (
	familyIPv4 family = iota
	familyGlobal
	familyLinkLocal
)

func familyOf(g verbs.GID) family {
	a := g.Addr()
	switch {
	case a.Is4In6():
		return familyIPv4
	case a.IsLinkLocalUnicast():
		return familyLinkLocal
	}
	return familyGlobal
}

// gidOf chooses the own GID of a family: RoCE v2 before v1.
func gidOf(table []verbs.GIDEntry, f family) (verbs.GIDEntry, bool) {
	for _, want := range []verbs.GIDType{verbs.GIDRoCEv2, verbs.GIDSoftware, verbs.GIDRoCEv1} {
		for _, e := range table {
			if e.Type == want && !e.GID.IsZero() && familyOf(e.GID) == f {
				return e, true
			}
		}
	}
	return verbs.GIDEntry{}, false
}
