package gateway

import (
	"bytes"
	"io"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/versity/versitygw/s3response"
)

// cpuTime is the CPU time that this process used.
func cpuTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// BenchmarkPut compares the two ways to give the backend an object that lies
// in memory: as an ordinary body, and as RC PUTs do.
func BenchmarkPut(b *testing.B) {
	const size = 8 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	for _, way := range []struct {
		name string
		body func() io.Reader
	}{
		{"plain", func() io.Reader { return bytes.NewReader(data) }},
		{"staged", func() io.Reader { return &stagedBody{data: data} }},
	} {
		b.Run(way.name, func(b *testing.B) {
			g, err := New(Options{
				Dir: b.TempDir(), AccessKey: "a", SecretKey: "s", Buckets: []string{"bucket"}, NoRCRoutes: true,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			defer g.Close(b.Context())
			bucket, key, n := "bucket", "key", int64(size)
			b.SetBytes(size)
			before := cpuTime(b)
			for b.Loop() {
				_, err := g.be.PutObject(b.Context(), s3response.PutObjectInput{
					Bucket: &bucket, Key: &key, ContentLength: &n, Body: way.body(),
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			gib := float64(b.N) * size / (1 << 30)
			b.ReportMetric((cpuTime(b)-before).Seconds()/gib, "cpu-s/GiB")
		})
	}
}
