package apps

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// tree describes what is below a directory: by path the type, mode, and the
// sum of the content or the target of a link.
type tree map[string]string

func readTree(t *testing.T, root string) tree {
	t.Helper()
	out := tree{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		content := ""
		switch d.Type() {
		case 0:
			content, err = sumOf(path)
		case fs.ModeSymlink:
			content, err = os.Readlink(path)
		}
		out[rel] = fmt.Sprintf("%v %s", info.Mode(), content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sumOf is the length and the sha256 of a file.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return fmt.Sprintf("%d %x", n, h.Sum(nil)), err
}

// compare reports what of want is not in got, and the other way round.
func (want tree) compare(t *testing.T, got tree) {
	t.Helper()
	for path, w := range want {
		if g, ok := got[path]; !ok {
			t.Errorf("%s is gone", path)
		} else if g != w {
			t.Errorf("%s is %s, was %s", path, g, w)
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s came from nowhere", path)
		}
	}
}
