package rc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"s3rdmafs/rc"
)

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
	d := newDuo(b, duoOptions{bare: true})
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
		d.objects.put(fmt.Sprintf("/b/k%d", i), random(size))
		if err := one(i); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
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
}
