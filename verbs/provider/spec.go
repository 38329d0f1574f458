package provider

import (
	"fmt"
	"strconv"
	"strings"
)

// Spec is a device asked for, as OpenWith takes it.
type Spec struct {
	Name    string
	Options Options
}

// ParseSpecs reads a list NAME[:PORT],… of devices. A port in it goes before that
// of o, which is for all of them.
func ParseSpecs(list string, o Options) ([]Spec, error) {
	var specs []Spec
	for word := range strings.SplitSeq(list, ",") {
		name, port, hasPort := strings.Cut(strings.TrimSpace(word), ":")
		spec := Spec{Name: name, Options: o}
		if hasPort {
			n, err := strconv.ParseUint(port, 10, 8)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("%q is not a device with a port, as in mlx5_0:1", word)
			}
			spec.Options.Port = uint8(n)
		}
		specs = append(specs, spec)
	}
	return specs, nil
}
