package stack

import "s3rdmafs/verbs"

// Devices are those of the rails.
func (s *Stack) Devices() []verbs.Device {
	var all []verbs.Device
	for _, r := range s.rails {
		all = append(all, r.device)
	}
	return all
}
