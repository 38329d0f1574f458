// Package version holds the version that the build stamps into the binaries.
package version

import "runtime/debug"

// Version is set by the linker; "" when built by plain go build.
var Version string

// String returns the version, or the commit go build recorded, or "dev".
func String() string {
	if Version != "" {
		return Version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return s.Value[:12]
			}
		}
	}
	return "dev"
}
