package store

import (
	"context"
	"testing"

	"s3rdmafs/internal/testenv"
)

// BenchmarkRead reads a 256 MiB object into registered memory, in parallel
// chunks, by HTTP and by RDMA on the software device.
func BenchmarkRead(b *testing.B) {
	const size = 256 << 20
	env := testenv.Start(b, testenv.Options{RDMA: true})
	dev := testenv.NewRDMA(b)
	bucket := env.NewBucket("")
	seg := dev.Segment(size, noise(size, 1))
	env.Put(bucket, "k", seg.Buf)
	client := dev.Client(env, env.AccessKey, env.SecretKey, nil)
	for _, mode := range []Mode{ModeOff, ModeRequire} {
		name := map[Mode]string{ModeOff: "HTTP", ModeRequire: "RDMA"}[mode]
		b.Run(name, func(b *testing.B) {
			s := open(b, env, env.Endpoint, func(o *Options) { o.RDMA, o.Mode = client, mode })
			i, err := s.Head(context.Background(), bucket, "k")
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(size)
			for b.Loop() {
				if _, err := s.Read(context.Background(), ReadRequest{Bucket: bucket, Key: "k", ETag: i.ETag, Dst: seg, ObjectSize: size}); err != nil {
					b.Fatal(err)
				}
			}
			st := s.Stats()
			if st.Read.RDMA.Bytes != 0 && mode == ModeOff || st.Read.HTTP.Bytes != 0 && mode == ModeRequire {
				b.Errorf("stats %+v", st)
			}
		})
	}
}

// BenchmarkPut stores 8 MiB objects by each transport.
func BenchmarkPut(b *testing.B) {
	const size = 8 << 20
	env := testenv.Start(b, testenv.Options{RDMA: true})
	dev := testenv.NewRDMA(b)
	bucket := env.NewBucket("")
	seg := dev.Segment(size, noise(size, 1))
	client := dev.Client(env, env.AccessKey, env.SecretKey, nil)
	for _, mode := range []Mode{ModeOff, ModeRequire} {
		name := map[Mode]string{ModeOff: "HTTP", ModeRequire: "RDMA"}[mode]
		b.Run(name, func(b *testing.B) {
			s := open(b, env, env.Endpoint, func(o *Options) { o.RDMA, o.Mode = client, mode })
			b.SetBytes(size)
			for b.Loop() {
				mustPut(b, s, PutRequest{Bucket: bucket, Key: "k", Src: seg})
			}
		})
	}
}
