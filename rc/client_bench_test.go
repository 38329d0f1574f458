package rc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/rc"
	"s3rdmafs/token"
)

// memoryOnly is a store that costs as little as possible: each object is the same
// bytes, and what is stored is dropped.
type memoryOnly []byte

func (m memoryOnly) Authorize(context.Context, rc.Principal, rc.Op, token.Target) error { return nil }

func (m memoryOnly) OpenRange(_ context.Context, _ rc.Principal, _ token.Target, off, size int64, _ rc.Conditions) (rc.Range, error) {
	return rc.Range{Size: size, ETag: "e", Reader: io.NopCloser(bytes.NewReader(m[off : off+size]))}, nil
}

func (m memoryOnly) Store(context.Context, rc.Principal, token.Target, []byte, rc.StoreOptions) (rc.Stored, error) {
	return rc.Stored{ETag: "e"}, nil
}

// BenchmarkTransfers measures whole transfers between our client and server in one
// process, HTTP over loopback and data over the software device: with a session,
// and so a queue pair on each side, for each, and with kept sessions.
func BenchmarkTransfers(b *testing.B) {
	for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
		for _, size := range []int{64 << 10, 1 << 20} {
			for _, keep := range []bool{false, true} {
				for _, parallel := range []int{1, 8} {
					b.Run(fmt.Sprintf("%s/%dKiB/keep=%v/parallel=%d", op, size>>10, keep, parallel), func(b *testing.B) {
						benchTransfers(b, op, size, keep, parallel)
					})
				}
			}
		}
	}
}

func benchTransfers(b *testing.B, op rc.Op, size int, keep bool, parallel int) {
	objects := memoryOnly(random(size))
	d := newDuo(b, duoOptions{bare: true, server: func(o *rc.ServerOptions) { o.Objects = objects }})
	c := d.client(func(o *rc.ClientOptions) { o.NoKeep = !keep })
	d.warm(c)
	one := func(i int) error {
		seg := d.seg.Slice(i*size, size)
		key := fmt.Sprintf("k%d", i)
		var err error
		if op == rc.OpGet {
			_, err = c.Get(context.Background(), rc.GetRequest{Bucket: "b", Key: key, Dst: seg})
		} else {
			_, err = c.Put(context.Background(), rc.PutRequest{Bucket: "b", Key: key, Src: seg})
		}
		return err
	}
	for i := range parallel {
		if err := one(i); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	before := cpuTime(b)
	work := make(chan struct{})
	var wg sync.WaitGroup
	for i := range parallel {
		wg.Go(func() {
			for range work {
				if err := one(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	// On a busy machine the CPU time says more than the time that went by.
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
