package testenv

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/minio/minio-go/v7"
)

func TestGatewayOutlivesKill(t *testing.T) {
	for _, inProcess := range []bool{false, true} {
		name := map[bool]string{false: "process", true: "in process"}[inProcess]
		t.Run(name, func(t *testing.T) {
			e := Start(t, Options{InProcess: inProcess})
			b := e.NewBucket("")
			e.Put(b, "key", []byte("data"))
			endpoint := e.Endpoint
			if inProcess {
				e.Stop()
			} else {
				e.Kill()
			}
			if _, err := e.Minio().StatObject(context.Background(), b, "key", minio.StatObjectOptions{}); err == nil {
				t.Error("the gateway answers although it is gone")
			}
			e.Restart()
			if e.Endpoint != endpoint {
				t.Errorf("endpoint after restart = %s, want %s", e.Endpoint, endpoint)
			}
			if got := e.Get(b, "key"); string(got) != "data" {
				t.Errorf("object after restart = %q", got)
			}
		})
	}
}

func TestBucketsAreDirectories(t *testing.T) {
	t.Parallel()
	e := Start(t, Options{})
	if err := os.Mkdir(filepath.Join(e.Dir, "by-hand"), 0o755); err != nil {
		t.Fatal(err)
	}
	e.Put("by-hand", "a/b", []byte("x"))
	if b, err := os.ReadFile(filepath.Join(e.Dir, "by-hand", "a", "b")); err != nil || string(b) != "x" {
		t.Errorf("file of the object = %q, %v", b, err)
	}
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if before == e.Dir {
		t.Error("the gateway's process changed the test's current directory")
	}
}
