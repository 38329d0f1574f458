package doctor

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	root := t.TempDir()
	for path, max := range map[string]string{"a": "1000000\n", "a/b": "max\n", "a/b/c": "2000000\n", "free": "max\n"} {
		if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path, "memory.max"), []byte(max), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name, self string
		limit      uint64
		where      string
		ok         bool
	}{
		{"a parent's is smaller", "0::/a/b/c\n", 1000000, "/a", true},
		{"own is max", "0::/a/b\n", 1000000, "/a", true},
		{"no limit", "0::/free\n", 0, "", false},
		{"beside version 1", "4:memory:/a/b/c\n0::/free\n", 0, "", false},
		{"only version 1", "4:memory:/a\n", 0, "", false},
		{"a cgroup that is not seen here", "0::/../../other/a\n", 0, "", false},
	} {
		limit, where, ok := memoryLimit(root, test.self)
		if limit != test.limit || where != test.where || ok != test.ok {
			t.Errorf("%s: %d, %q, %v", test.name, limit, where, ok)
		}
	}
	// In a namespace of its own the process's cgroup is the root.
	if err := os.WriteFile(filepath.Join(root, "memory.max"), []byte("3000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if limit, where, ok := memoryLimit(root, "0::/\n"); limit != 3000 || where != "/" || !ok {
		t.Errorf("root: %d, %q, %v", limit, where, ok)
	}
}

func TestKernelAtLeast(t *testing.T) {
	for release, want := range map[string]bool{"6.9.0": true, "6.18.44-fc": true, "7.0": true, "6.8.12-generic": false, "5.15": false, "odd": false} {
		if got := kernelAtLeast(release, 6, 9); got != want {
			t.Errorf("%s is at least 6.9: %v", release, got)
		}
	}
}
