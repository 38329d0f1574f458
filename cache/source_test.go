package cache

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"testing"

	"s3rdmafs/store"
)

var contentSeed = maphash.MakeSeed()

// fill writes the bytes that version etag of an object has at off.
func fill(p []byte, key, etag string, off int64) {
	seed := maphash.String(contentSeed, key+"\x00"+etag)
	for len(p) > 0 {
		// Every 4 KiB are a piece of the table that the place chooses.
		x := (seed + uint64(off/chunk)) * 0x9e3779b97f4a7c15
		from := int(x >> 45)
		n := copy(p, noise[from+int(off%chunk):from+chunk])
		p = p[n:]
		off += int64(n)
	}
}

const chunk = 4096

// noise is random, and long enough that chunks at random places differ.
var noise = func() []byte {
	p := make([]byte, 1<<19+chunk)
	rand.NewChaCha8([32]byte{}).Read(p)
	return p
}()

func content(key, etag string, off int64, n int) []byte {
	p := make([]byte, n)
	fill(p, key, etag, off)
	return p
}

// memSource serves objects whose content follows from key and ETag.
type memSource struct {
	// hook runs before the bytes are written; it may wait, and its error is the
	// answer. Set before use.
	hook func(context.Context, store.ReadRequest) error

	mu      sync.Mutex
	current map[string]string // key: ETag, when not the one asked for
	reads   []store.ReadRequest
}

func (m *memSource) Read(ctx context.Context, r store.ReadRequest) (int, error) {
	m.mu.Lock()
	m.reads = append(m.reads, r)
	m.mu.Unlock()
	if r.Off < 0 || len(r.Dst.Buf) == 0 || r.Off+int64(len(r.Dst.Buf)) > r.ObjectSize {
		return 0, fmt.Errorf("%d bytes at %d of an object of %d", len(r.Dst.Buf), r.Off, r.ObjectSize)
	}
	if m.hook != nil {
		if err := m.hook(ctx, r); err != nil {
			return 0, err
		}
	}
	m.mu.Lock()
	now, other := m.current[r.Key]
	m.mu.Unlock()
	if other && now != r.ETag {
		return 0, &store.Error{Op: "Read", Bucket: r.Bucket, Key: r.Key, Kind: store.ErrChanged}
	}
	fill(r.Dst.Buf, r.Key, r.ETag, r.Off)
	return len(r.Dst.Buf), nil
}

func (m *memSource) change(key, etag string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current == nil {
		m.current = map[string]string{}
	}
	m.current[key] = etag
}

// count is the number of reads so far.
func (m *memSource) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.reads)
}

// asked is the number of bytes asked for so far.
func (m *memSource) asked() (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.reads {
		n += int64(len(r.Dst.Buf))
	}
	return n
}

// gate is a hook that holds reads until they are let through.
type gate struct{ pass chan error }

func newGate() *gate { return &gate{pass: make(chan error)} }

func (g *gate) hook(ctx context.Context, _ store.ReadRequest) error {
	select {
	case err := <-g.pass:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func key(k, etag string, size int64) Key {
	return Key{Bucket: "b", Key: k, ETag: etag, Size: size}
}

// newCache makes a cache that is closed, empty, at the end of the test.
func newCache(t testing.TB, o Options) *Cache {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEmpty(t, c) })
	return c
}

func closeEmpty(t testing.TB, c *Cache) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if s := c.Stats(); s.InUse != 0 || s.Pinned != 0 {
		t.Errorf("after Close %d bytes are in use, %d pinned", s.InUse, s.Pinned)
	}
}

// openStream opens k with one stream until the end of the test.
func openStream(t testing.TB, c *Cache, k Key) *Stream {
	o := c.Open(k)
	t.Cleanup(o.Close)
	return o.NewStream()
}

// wantBytes reads n bytes at off through s and compares them.
func wantBytes(t testing.TB, s *Stream, off int64, n int) {
	t.Helper()
	if err := checkRead(context.Background(), s, off, n); err != nil {
		t.Fatal(err)
	}
}

func checkRead(ctx context.Context, s *Stream, off int64, n int) error {
	k := s.obj.key
	p := make([]byte, n)
	got, err := s.ReadAt(ctx, p, off)
	if err != nil || got != n {
		return fmt.Errorf("ReadAt %d bytes at %d of %s: %d, %w", n, off, k.Key, got, err)
	}
	if !bytes.Equal(p, content(k.Key, k.ETag, off, n)) {
		return fmt.Errorf("wrong bytes in %d bytes at %d of %s", n, off, k.Key)
	}
	return nil
}
