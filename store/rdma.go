package store

import "fmt"

// Mode says when object bytes may go by RDMA.
type Mode int

const (
	ModeAuto    Mode = iota // RDMA where it is eligible, HTTP when it fails
	ModeOff                 // HTTP only
	ModeRequire             // an eligible transfer that fails by RDMA is an error
)

// ParseMode reads "auto", "off" or "require".
func ParseMode(s string) (Mode, error) {
	for m := ModeAuto; m <= ModeRequire; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("RDMA mode %q: want auto, require or off", s)
}

func (m Mode) String() string {
	switch m {
	case ModeAuto:
		return "auto"
	case ModeOff:
		return "off"
	case ModeRequire:
		return "require"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}
