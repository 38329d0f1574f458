package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/internal/testenv"
	"s3rdmafs/verbs"
)

// open opens a store on a gateway or a proxy in front of it, with short pauses.
func open(t testing.TB, env *testenv.Env, endpoint string, change func(*Options)) *Store {
	t.Helper()
	o := Options{
		Endpoint: endpoint, Region: env.Region, Credentials: credentials.NewStaticV4(env.AccessKey, env.SecretKey, ""),
		RetryFor: 20 * time.Second, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if change != nil {
		change(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	s.firstPause = time.Millisecond
	t.Cleanup(s.Close)
	return s
}

// noise is n bytes in which no two pages are equal.
func noise(n int, seed uint64) []byte {
	out := make([]byte, 0, n+sha256.Size)
	var in [16]byte
	binary.LittleEndian.PutUint64(in[:], seed)
	for i := uint64(0); len(out) < n; i++ {
		binary.LittleEndian.PutUint64(in[8:], i)
		sum := sha256.Sum256(in[:])
		out = append(out, sum[:]...)
	}
	return out[:n]
}

func plain(b []byte) verbs.Segment { return verbs.Segment{Buf: b} }

func mustPut(t testing.TB, s *Store, r PutRequest) Info {
	t.Helper()
	i, err := s.Put(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// readAll reads a whole object through Read.
func readAll(t testing.TB, s *Store, bucket, key string) []byte {
	t.Helper()
	i, err := s.Head(context.Background(), bucket, key)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, i.Size)
	n, err := s.Read(context.Background(), ReadRequest{Bucket: bucket, Key: key, ETag: i.ETag, Dst: plain(buf), ObjectSize: i.Size})
	if err != nil || int64(n) != i.Size {
		t.Fatalf("read %d of %d: %v", n, i.Size, err)
	}
	return buf
}

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	var e *Error
	if !errors.Is(err, kind) || !errors.As(err, &e) {
		t.Fatalf("got error %v, want an *Error of kind %q", err, kind)
	}
}

func wantSame(t testing.TB, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes differ from the %d expected", len(got), len(want))
	}
}

func TestOptionsRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"endpoint with path":   {Endpoint: "http://host/path"},
		"endpoint with scheme": {Endpoint: "ftp://host"},
		"endpoint with secret": {Endpoint: "http://user:secret@host"},
		"no host":              {Endpoint: "http://"},
		"require without RDMA": {Mode: ModeRequire},
		"mode":                 {Mode: 7},
		"negative":             {Parallel: -1},
		"tiny chunk":           {ChunkSize: 1},
		"tiny RDMA chunk":      {RDMAChunkSize: 1},
	} {
		t.Run(name, func(t *testing.T) {
			err := o.Validate()
			if err == nil {
				t.Fatal("accepted")
			}
			if bytes.Contains([]byte(err.Error()), []byte("secret")) {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

func TestParseMode(t *testing.T) {
	for _, m := range []Mode{ModeAuto, ModeOff, ModeRequire} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("%v: got %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("on"); err == nil {
		t.Error(`"on" accepted`)
	}
}
