//go:build !cgo

package ibv

import (
	"fmt"

	"s3rdmafs/verbs"
)

var errNoCgo = fmt.Errorf("%w: built without cgo", verbs.ErrUnsupported)

// List returns verbs.ErrUnsupported in this build.
func List() ([]DeviceInfo, error) { return nil, errNoCgo }

// Open returns verbs.ErrUnsupported in this build.
func Open(string) (verbs.Device, error) { return nil, errNoCgo }
