package token

import "strings"

// Shape tells which protocol a value of HeaderToken belongs to (section 4.6).
type Shape uint8

const (
	ShapeUnknown  Shape = iota
	ShapeRC             // this protocol's token, with or without suffix
	ShapeCuObject       // NVIDIA DC descriptor
	ShapeShim           // elbencho's client shim
	ShapeOFI            // Ceph's libfabric token
)

func (s Shape) String() string {
	names := [...]string{"unknown", "hipobj-rc", "cuObject", "rc shim", "ofi1"}
	if int(s) < len(names) {
		return names[s]
	}
	return names[ShapeUnknown]
}

// ShapeOf looks only at the form; a token of ShapeRC may still be malformed.
func ShapeOf(value string) Shape {
	f := strings.SplitN(value, ":", 4)
	switch {
	case len(f[0]) == 2*Size && isHex(f[0]):
		return ShapeRC
	case len(f) >= 3 && f[2] == "ofi1":
		return ShapeOFI
	case len(f) == 4 && f[0] == "rc" && len(f[1]) == 32 && isHex(f[1]):
		return ShapeShim
	case len(f) >= 3 && len(f[0]) == 16 && isHex(f[0]) && len(f[1]) == 8 && isHex(f[1]):
		return ShapeCuObject
	}
	return ShapeUnknown
}
