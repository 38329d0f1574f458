package bench

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

var errBytes = errors.New("the bytes that came back are not those that were stored")

// object is what a worker reads.
type object struct {
	key, etag string
	sum       [sha256.Size]byte
}

// preflight moves one object by each lane, so that what does not work is known
// before anything is measured. In mode both RDMA is then left out.
func (b *run) preflight(ctx context.Context) error {
	size := max(minRDMA, slices.Min(b.o.Sizes))
	var good []lane
	for _, l := range b.lanes {
		o, err := b.store(ctx, l, 0, size, "preflight")
		if err == nil {
			err = b.readBack(ctx, l, 0, size, o)
		}
		switch {
		case err == nil:
			good = append(good, l)
		case b.o.Mode == ModeBoth && l.name == laneRDMA && errors.Is(err, store.ErrRDMA) && ctx.Err() == nil && !b.unsafe.Load():
			b.note("RDMA is not measured: " + err.Error())
		default:
			return err
		}
	}
	return b.keep(ctx, good)
}

// keep closes the lanes that are not good. Buffers are registered with the
// first one and are then left to it.
func (b *run) keep(ctx context.Context, good []lane) error {
	if len(good) == len(b.lanes) {
		return nil
	}
	if err := b.close(ctx); err != nil {
		return err
	}
	b.lanes, b.buffer, b.segs, b.result.Device = nil, nil, nil, nil
	mode := b.o.Mode
	b.o.Mode = ModeOff
	defer func() { b.o.Mode = mode }()
	return b.open(ctx)
}

// put stores n bytes of worker w's buffer.
func (b *run) put(ctx context.Context, l lane, w int, n int64, key string) (store.Info, error) {
	info, err := l.stack.Store.Put(ctx, store.PutRequest{Bucket: b.o.Bucket, Key: b.prefix + key, Src: b.segs[w].Slice(0, int(n))})
	return info, b.seen(err)
}

func (b *run) get(ctx context.Context, l lane, w int, n int64, o object) error {
	_, err := l.stack.Store.Read(ctx, store.ReadRequest{
		Bucket: b.o.Bucket, Key: o.key, ETag: o.etag, Dst: b.segs[w].Slice(0, int(n)), ObjectSize: n,
	})
	return b.seen(err)
}

// seen remembers that memory may never be given back.
func (b *run) seen(err error) error {
	if errors.Is(err, verbs.ErrUnsafe) {
		b.unsafe.Store(true)
	}
	return err
}

// store stores fresh random bytes.
func (b *run) store(ctx context.Context, l lane, w int, n int64, key string) (object, error) {
	buf := b.segs[w].Buf[:n]
	if _, err := rand.Read(buf); err != nil {
		return object{}, err
	}
	info, err := b.put(ctx, l, w, n, key)
	return object{b.prefix + key, info.ETag, sha256.Sum256(buf)}, err
}

// readBack reads an object into cleared memory and compares.
func (b *run) readBack(ctx context.Context, l lane, w int, n int64, o object) error {
	buf := b.segs[w].Buf[:n]
	clear(buf)
	if err := b.get(ctx, l, w, n, o); err != nil {
		return err
	}
	if sha256.Sum256(buf) != o.sum {
		return fmt.Errorf("get over %s: %w", l.name, errBytes)
	}
	return nil
}

// measure runs all points in order of size, operation and concurrency.
func (b *run) measure(ctx context.Context) error {
	total := len(b.o.Sizes) * len(b.o.Ops) * len(b.o.Concurrency)
	for _, size := range b.o.Sizes {
		var objects []object
		for _, op := range b.o.Ops {
			if op == Get && objects == nil {
				var err error
				if objects, err = b.prepare(ctx, size); err != nil {
					return err
				}
			}
			for _, conc := range b.o.Concurrency {
				name := fmt.Sprintf("%d/%d %s %s × %d", len(b.result.Points)+1, total, op, humanize.IBytes(uint64(size)), conc)
				p, err := b.point(ctx, name, Point{Op: op, Size: size, Concurrency: conc}, objects)
				if err != nil {
					return err
				}
				b.result.Points = append(b.result.Points, p)
			}
		}
		// Only the objects of one size are on the server at a time.
		if err := b.removeAll(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare stores an object for each worker to read.
func (b *run) prepare(ctx context.Context, size int64) ([]object, error) {
	b.o.Progress("storing objects of " + humanize.IBytes(uint64(size)))
	objects := make([]object, len(b.segs))
	g, gctx := errgroup.WithContext(ctx)
	for w := range objects {
		g.Go(func() (err error) {
			objects[w], err = b.store(gctx, b.lanes[0], w, size, fmt.Sprintf("get-%d", w))
			return err
		})
	}
	return objects, g.Wait()
}

// point measures all lanes in turns.
func (b *run) point(ctx context.Context, name string, p Point, objects []object) (Point, error) {
	lanes := slices.Clone(b.lanes)
	if p.Size < minRDMA && len(lanes) > 1 {
		lanes = slices.DeleteFunc(lanes, func(l lane) bool { return l.name == laneRDMA })
		b.noteOnce("transfers below 64 KiB never go by RDMA")
	}
	tallies := make([]tally, len(lanes))
	for _, l := range lanes {
		if err := b.warm(ctx, l, p, objects); err != nil {
			return p, err
		}
	}
	for round := range rounds {
		for i := range lanes {
			// Every other round the other way, so that none is always the first.
			if round%2 == 1 {
				i = len(lanes) - 1 - i
			}
			b.o.Progress(fmt.Sprintf("%s %s %s", name, lanes[i].name, strings.Repeat(".", round+1)))
			if err := b.slice(ctx, lanes[i], p, objects, &tallies[i]); err != nil {
				return p, err
			}
		}
	}
	for i, l := range lanes {
		p.Lanes = append(p.Lanes, tallies[i].measurement(l.name))
	}
	p.Ratio = ratio(p.Lanes)
	return p, nil
}

func (b *run) noteOnce(s string) {
	if !slices.Contains(b.result.Notes, s) {
		b.note(s)
	}
}

// warm makes connections and queue pairs, and compares what is read.
func (b *run) warm(ctx context.Context, l lane, p Point, objects []object) error {
	g, gctx := errgroup.WithContext(ctx)
	for w := range p.Concurrency {
		g.Go(func() error {
			if p.Op == Get {
				return b.readBack(gctx, l, w, p.Size, objects[w])
			}
			_, err := b.put(gctx, l, w, p.Size, putKey(w))
			return err
		})
	}
	return g.Wait()
}

func putKey(w int) string { return fmt.Sprintf("put-%d", w) }

// slice runs one lane for its share of the time. Transfers under way when the
// time is over are counted, and so is the time that they take.
func (b *run) slice(ctx context.Context, l lane, p Point, objects []object, t *tally) error {
	before := l.stack.Store.Stats()
	cpu := cpuTime()
	start := time.Now()
	end := start.Add(b.o.Time / rounds)
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	for w := range p.Concurrency {
		g.Go(func() error {
			var h histogram
			for begun := time.Now(); begun.Before(end); {
				var err error
				if p.Op == Get {
					err = b.get(gctx, l, w, p.Size, objects[w])
				} else {
					_, err = b.put(gctx, l, w, p.Size, putKey(w))
				}
				if err != nil {
					return err
				}
				now := time.Now()
				h.add(now.Sub(begun))
				begun = now
			}
			mu.Lock()
			defer mu.Unlock()
			t.h.merge(&h)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	t.elapsed += time.Since(start)
	t.cpu += cpuTime() - cpu
	t.bytes = int64(t.h.n) * p.Size
	after := l.stack.Store.Stats()
	t.rdma += after.Read.RDMA.Bytes + after.Write.RDMA.Bytes - before.Read.RDMA.Bytes - before.Write.RDMA.Bytes
	t.http += after.Read.HTTP.Bytes + after.Write.HTTP.Bytes - before.Read.HTTP.Bytes - before.Write.HTTP.Bytes
	return nil
}

// cpuTime is what this process used so far.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
