package fs

import (
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// posixExceptions are the tests of posixtest that do not fit S3, with the
// reason.
var posixExceptions = map[string]string{
	"Link":                "S3 has no second name for an object: link(2) is EPERM",
	"FcntlFlockLocksFile": "expects fcntl locks of one process to exclude each other; go-fuse leaves it out as well",
	"LinkUnlinkRename":    "S3 has no second name for an object: link(2) is EPERM",
}

// longTests is the environment variable that make test-long sets.
const longTests = "S3RDMAFS_LONG"

func TestPosix(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			if reason := posixExceptions[name]; reason != "" {
				t.Skip(reason)
			}
			if name == "OpenSymlinkRace" && os.Getenv(longTests) == "" {
				t.Skip("a thousand renames take half a minute; set " + longTests)
			}
			dir := m.path(name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			test(t, dir)
		})
	}
}
