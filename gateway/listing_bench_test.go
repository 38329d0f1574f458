package gateway_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/minio/minio-go/v7"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/testenv"
)

// BenchmarkListNothing is what a file system asks before it makes a file: whether
// there is a directory of the name, in a directory with many entries.
func BenchmarkListNothing(b *testing.B) {
	for _, entries := range []int{0, 3000} {
		b.Run(fmt.Sprintf("%d beside", entries), func(b *testing.B) {
			dir := b.TempDir()
			for i := range entries {
				path := filepath.Join(dir, "bucket", "d", fmt.Sprintf("f%05d", i))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(dir, "bucket", "d", "empty"), 0o755); err != nil {
				b.Fatal(err)
			}
			e := testenv.Start(b, testenv.Options{Gateway: gateway.Options{Dir: dir}})
			core := minio.Core{Client: e.Minio()}
			for _, prefix := range []string{"d/new/", "d/empty/", "d/"} {
				b.Run(prefix, func(b *testing.B) {
					for b.Loop() {
						if _, err := core.ListObjectsV2("bucket", prefix, "", "", "/", 1); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}
