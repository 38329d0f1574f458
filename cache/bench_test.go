package cache

import (
	"context"
	"testing"

	"s3rdmafs/store"
)

// instant answers without touching the memory.
type instant struct{}

func (instant) Read(_ context.Context, r store.ReadRequest) (int, error) {
	return len(r.Dst.Buf), nil
}

// copying answers with the bytes of a buffer, as a transfer by the CPU would.
type copying struct{ data []byte }

func newCopying() copying {
	p := make([]byte, defaultBlockSize)
	fill(p, "x", "e", 0)
	return copying{p}
}

func (s copying) Read(_ context.Context, r store.ReadRequest) (int, error) {
	return copy(r.Dst.Buf, s.data), nil
}

func benchCache(b *testing.B, size int64, src Source) *Cache {
	b.Helper()
	c, err := New(Options{Size: size, Source: src})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { closeEmpty(b, c) })
	return c
}

// A FUSE read of 128 KiB whose bytes are resident, replied without a copy.
func BenchmarkViewResident(b *testing.B) {
	c := benchCache(b, 256<<20, instant{})
	const size = 64 << 20
	s := openStream(b, c, key("x", "e", size))
	p := make([]byte, size)
	if _, err := s.ReadAt(b.Context(), p, 0); err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	off := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		v, err := s.View(ctx, off, 128<<10)
		if err != nil {
			b.Fatal(err)
		}
		v.Release()
		off = (off + 128<<10) % size
	}
}

func BenchmarkViewResidentParallel(b *testing.B) {
	c := benchCache(b, 256<<20, instant{})
	const size = 16 << 20
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		o := c.Open(key("x", "e", size))
		defer o.Close()
		s := o.NewStream()
		defer s.Close()
		ctx := b.Context()
		for off := int64(0); pb.Next(); off = (off + 128<<10) % size {
			v, err := s.View(ctx, off, 128<<10)
			if err != nil {
				b.Error(err)
				return
			}
			v.Release()
		}
	})
}

// What one miss costs besides the transfer: 128 KiB at random in a full cache.
func BenchmarkRandomMiss(b *testing.B) {
	c := benchCache(b, 64<<20, instant{})
	const size = 64 << 30
	s := openStream(b, c, key("x", "e", size))
	ctx := b.Context()
	off := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		v, err := s.View(ctx, off, 4096)
		if err != nil {
			b.Fatal(err)
		}
		v.Release()
		off = (off + 7919<<17) % size
	}
}

func benchSequential(b *testing.B, budget int64, src Source, read func(*Stream, []byte, int64) error) {
	const size, n = 1 << 30, 1 << 20
	c := benchCache(b, budget, src)
	p := make([]byte, n)
	b.SetBytes(size)
	i := 0
	for b.Loop() {
		i++
		o := c.Open(key("x", string(rune(i)), size))
		s := o.NewStream()
		for off := int64(0); off < size; off += n {
			if err := read(s, p, off); err != nil {
				b.Fatal(err)
			}
		}
		o.Close()
	}
}

// 1 GiB in order through a budget of a quarter of that.
func BenchmarkSequentialReadAt(b *testing.B) {
	src := newCopying()
	benchSequential(b, 256<<20, src, func(s *Stream, p []byte, off int64) error {
		_, err := s.ReadAt(b.Context(), p, off)
		return err
	})
}

func BenchmarkSequentialView(b *testing.B) {
	src := newCopying()
	benchSequential(b, 256<<20, src, func(s *Stream, p []byte, off int64) error {
		for end := off + int64(len(p)); off < end; {
			v, err := s.View(b.Context(), off, int(end-off))
			if err != nil {
				return err
			}
			off += int64(len(v.Bytes()))
			v.Release()
		}
		return nil
	})
}

// The same with a source that costs nothing: the cache alone.
func BenchmarkSequentialViewInstant(b *testing.B) {
	benchSequential(b, 256<<20, instant{}, func(s *Stream, p []byte, off int64) error {
		for at := off; at < off+int64(len(p)); at += 128 << 10 {
			v, err := s.View(b.Context(), at, 128<<10)
			if err != nil {
				return err
			}
			v.Release()
		}
		return nil
	})
}

func BenchmarkStaging(b *testing.B) {
	c := benchCache(b, 256<<20, instant{})
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		r, err := c.Staging(ctx, 8<<20)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}
