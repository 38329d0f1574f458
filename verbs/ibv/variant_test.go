package ibv

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"s3rdmafs/verbs"
)

// expectVariable holds the reason that a build without verbs has to give.
const expectVariable = "S3RDMAFS_EXPECT_UNSUPPORTED"

// TestVariants builds the package as on machines without cgo and without the
// header, and asks those builds for a device.
func TestVariants(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the package and parts of the standard library twice")
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command here to build with")
	}
	for _, v := range []struct {
		name, reason string
		env          []string
		tools        []string
	}{
		{"without cgo", "built without cgo", []string{"CGO_ENABLED=0"}, nil},
		{"without header", "built without libibverbs headers", []string{"CGO_ENABLED=1", "CGO_CFLAGS=-O2 -DS3RDMAFS_NO_VERBS_H"}, []string{"gcc"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			for _, tool := range v.tools {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skipf("this build needs %s", tool)
				}
			}
			cmd := exec.CommandContext(t.Context(), goTool, "test", "-count=1", "-v", "-run=^TestUnsupported$", ".")
			cmd.Env = append(os.Environ(), append(v.env, expectVariable+"="+v.reason)...)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestUnsupported") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestUnsupported(t *testing.T) {
	reason := os.Getenv(expectVariable)
	if reason == "" {
		t.Skip("for builds without verbs; TestVariants makes them")
	}
	_, listErr := List()
	_, openErr := Open("mlx5_0")
	for _, err := range []error{listErr, openErr} {
		if !errors.Is(err, verbs.ErrUnsupported) || !strings.HasSuffix(err.Error(), reason) {
			t.Errorf("%v; want the reason %q", err, reason)
		}
	}
}
