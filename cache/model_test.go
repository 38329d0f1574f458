package cache

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

var errBoom = errors.New("boom")

// world is a cache with everything that uses it, and what may be expected.
type world struct {
	c       *Cache
	pd      *fakePD
	parked  []*fetchCall // reads of the source that wait for their answer
	arrived chan *fetchCall
	current map[string]int // version of each key

	handles []*handle
	readers []*reader
	views   []*heldView
	regions []*heldRegion

	boomed, unsafe bool
	late           []verbs.Segment // memory that a peer may still write to
	serial         int
}

type fetchCall struct {
	r      store.ReadRequest
	answer chan error
	told   bool // RDMA failed
}

type handle struct {
	o       *Object
	streams []*Stream
	users   int
}

type reader struct {
	h         *handle
	cancel    context.CancelFunc
	cancelled bool
	done      chan error
}

type heldView struct {
	v    *View
	h    *handle
	want []byte
}

type heldRegion struct {
	r      *Region
	cancel context.CancelFunc
	done   chan *Region // nil once r is there
	want   []byte
}

func (w *world) Read(_ context.Context, r store.ReadRequest) (int, error) {
	call := &fetchCall{r: r, answer: make(chan error)}
	w.arrived <- call
	err := <-call.answer
	if call.told {
		r.RDMAFailed(errBoom)
	}
	if err != nil {
		return 0, err
	}
	fill(r.Dst.Buf, r.Key, r.ETag, r.Off)
	return len(r.Dst.Buf), w.pd.check(r.Dst)
}

// settle waits until nothing moves any more, and looks at what came out.
func (w *world) settle(t *rapid.T) {
	for {
		synctest.Wait()
		select {
		case call := <-w.arrived:
			w.parked = append(w.parked, call)
			continue
		default:
		}
		break
	}
	for _, s := range w.late {
		for i := range s.Buf {
			s.Buf[i] = 0xdb
		}
	}
	for i := 0; i < len(w.readers); i++ {
		r := w.readers[i]
		select {
		case err := <-r.done:
			w.judge(t, r, err)
			r.h.users--
			r.cancel()
			w.readers = append(w.readers[:i], w.readers[i+1:]...)
			i--
		default:
			if r.cancelled {
				t.Fatal("a cancelled reader hangs")
			}
		}
	}
	for _, h := range w.regions {
		if h.done == nil {
			continue
		}
		select {
		case h.r = <-h.done:
			h.done = nil
			if h.r != nil {
				w.serial++
				fill(h.r.Bytes(), "region", fmt.Sprint(w.serial), 0)
				h.want = content("region", fmt.Sprint(w.serial), 0, len(h.r.Bytes()))
			}
		default:
		}
	}
	for _, v := range w.views {
		if string(v.v.Bytes()) != string(v.want) {
			t.Fatal("a view changed")
		}
	}
	for _, h := range w.regions {
		if h.r != nil && string(h.r.Bytes()) != string(h.want) {
			t.Fatal("a staging region changed")
		}
	}
	if err := w.c.invariants(); err != nil {
		t.Fatal(err)
	}
	if s := w.c.Stats(); s.InUse > s.Budget || s.Pinned > s.Budget {
		t.Fatalf("over the budget: %+v", s)
	}
}

func (w *world) judge(t *rapid.T, r *reader, err error) {
	switch k := r.h.o.key; {
	case err == nil:
	case errors.Is(err, context.Canceled) && r.cancelled:
	case errors.Is(err, errBoom) && w.boomed:
	case errors.Is(err, verbs.ErrUnsafe) && w.unsafe:
	case errors.Is(err, ErrExhausted) && w.unsafe:
	case errors.Is(err, store.ErrChanged) && k.ETag != fmt.Sprint(w.current[k.Key]):
	default:
		t.Fatalf("reader of %v: %v", k, err)
	}
}

func (w *world) version(k string) Key {
	v := w.current[k]
	return key(k, fmt.Sprint(v), int64(len(k)*len(k)*len(k)*150_000+v*10_000))
}

func (w *world) answer(i int, err error) {
	call := w.parked[i]
	w.parked = append(w.parked[:i], w.parked[i+1:]...)
	if call.r.ETag != fmt.Sprint(w.current[call.r.Key]) && !errors.Is(err, verbs.ErrUnsafe) {
		err = store.ErrChanged
	}
	if errors.Is(err, verbs.ErrUnsafe) {
		w.late = append(w.late, call.r.Dst)
	}
	call.answer <- err
}

func pick[T any](t *rapid.T, what string, from []T) (int, T) {
	if len(from) == 0 {
		t.Skip("no " + what)
	}
	i := rapid.IntRange(0, len(from)-1).Draw(t, what)
	return i, from[i]
}

func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Without the method Deadline, which a bubble does not allow.
		rapid.Check(struct{ testing.TB }{t}, runModel)
	})
}

func runModel(t *rapid.T) {
	pd := &fakePD{}
	w := &world{pd: pd, current: map[string]int{}, arrived: make(chan *fetchCall, 1000)}
	var err error
	w.c, err = New(Options{
		Size:       rapid.SampledFrom([]int64{1 << 20, 3<<20 + 16<<10, 8 << 20}).Draw(t, "size"),
		SmallBlock: rapid.SampledFrom([]int64{16 << 10, 128 << 10}).Draw(t, "small"),
		PD:         pd, Source: w,
	})
	if err != nil {
		t.Fatal(err)
	}
	keys := rapid.SampledFrom([]string{"a", "bb", "ccc", "dddd"})
	t.Repeat(map[string]func(*rapid.T){
		"": w.settle,
		"open": func(t *rapid.T) {
			o := w.c.Open(w.version(keys.Draw(t, "key")))
			w.handles = append(w.handles, &handle{o: o, streams: []*Stream{o.NewStream()}})
		},
		"stream": func(t *rapid.T) {
			_, h := pick(t, "handle", w.handles)
			h.streams = append(h.streams, h.o.NewStream())
		},
		"close": func(t *rapid.T) {
			i, h := pick(t, "handle", w.handles)
			if h.users > 0 {
				t.Skip("handle is in use")
			}
			for _, s := range h.streams {
				s.Close()
			}
			h.o.Close()
			w.handles = append(w.handles[:i], w.handles[i+1:]...)
		},
		"read": w.read,
		"read many": func(t *rapid.T) {
			for range 8 {
				w.read(t)
			}
		},
		"view": func(t *rapid.T) {
			_, h := pick(t, "handle", w.handles)
			_, s := pick(t, "stream", h.streams)
			off := rapid.Int64Range(0, h.o.key.Size-1).Draw(t, "off")
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // takes what is there, and starts a fetch of what is not
			v, err := s.View(ctx, off, 10_000)
			if err != nil {
				return
			}
			want := content(h.o.key.Key, h.o.key.ETag, off, len(v.Bytes()))
			w.views = append(w.views, &heldView{v: v, h: h, want: want})
		},
		"release": func(t *rapid.T) {
			i, v := pick(t, "view", w.views)
			v.v.Release()
			w.views = append(w.views[:i], w.views[i+1:]...)
		},
		"cancel": func(t *rapid.T) {
			_, r := pick(t, "reader", w.readers)
			r.cancelled = true
			r.cancel()
		},
		"answer": func(t *rapid.T) {
			i, _ := pick(t, "fetch", w.parked)
			w.answer(i, nil)
		},
		"answer all": func(t *rapid.T) {
			pick(t, "fetch", w.parked)
			for len(w.parked) > 0 {
				w.answer(0, nil)
			}
		},
		"fail": func(t *rapid.T) {
			i, _ := pick(t, "fetch", w.parked)
			w.boomed = true
			w.parked[i].told = rapid.Bool().Draw(t, "by RDMA")
			w.answer(i, errBoom)
		},
		"fall back": func(t *rapid.T) {
			i, _ := pick(t, "fetch", w.parked)
			w.parked[i].told = true
			w.answer(i, nil)
		},
		"fail unsafe": func(t *rapid.T) {
			i, _ := pick(t, "fetch", w.parked)
			if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
				t.Skip("rare")
			}
			w.unsafe = true
			w.answer(i, verbs.ErrUnsafe)
		},
		"change": func(t *rapid.T) {
			w.current[keys.Draw(t, "key")]++
		},
		"invalidate": func(t *rapid.T) {
			w.c.Invalidate("b", keys.Draw(t, "key"))
		},
		"stage": func(t *rapid.T) {
			n := rapid.IntRange(1, w.c.MaxStaging()).Draw(t, "n")
			ctx, cancel := context.WithCancel(context.Background())
			h := &heldRegion{cancel: cancel, done: make(chan *Region, 1)}
			w.regions = append(w.regions, h)
			go func() {
				r, _ := w.c.Staging(ctx, n)
				h.done <- r
			}()
		},
		"unstage": func(t *rapid.T) {
			i, h := pick(t, "region", w.regions)
			w.drop(t, i, h, rapid.IntRange(0, 20).Draw(t, "unsafe") == 20)
		},
	})

	// Everything comes to an end.
	for len(w.views) > 0 {
		w.views[0].v.Release()
		w.views = w.views[1:]
	}
	for len(w.regions) > 0 {
		w.drop(t, 0, w.regions[0], false)
	}
	for w.settle(t); len(w.parked) > 0; w.settle(t) {
		w.answer(0, nil)
	}
	if len(w.readers) > 0 {
		t.Fatalf("%d readers hang", len(w.readers))
	}
	for _, h := range w.handles {
		h.o.Close()
	}
	w.settle(t)
	err = w.c.Close(context.Background())
	mrs, _ := pd.registered()
	if w.unsafe {
		if !errors.Is(err, verbs.ErrUnsafe) || mrs == 0 {
			t.Fatalf("Close with memory in quarantine: %v, %d MRs", err, mrs)
		}
		w.c.arena.mem.Close()
	} else if s := w.c.Stats(); err != nil || mrs != 0 || s.InUse != 0 || s.Pinned != 0 || s.Objects != 0 {
		t.Fatalf("Close: %v, %d MRs, %+v", err, mrs, s)
	}
}

// read starts a reader.
func (w *world) read(t *rapid.T) {
	_, h := pick(t, "handle", w.handles)
	_, s := pick(t, "stream", h.streams)
	size := h.o.key.Size
	off := rapid.Int64Range(0, size-1).Draw(t, "off")
	if rapid.Bool().Draw(t, "on") { // where the first run ended
		w.c.mu.Lock()
		off = min(s.runs[0].pos, size-1)
		w.c.mu.Unlock()
	}
	n := int(min(size-off, rapid.SampledFrom([]int64{1, 4096, 100_000, 1 << 20}).Draw(t, "n")))
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{h: h, cancel: cancel, done: make(chan error, 1)}
	h.users++
	w.readers = append(w.readers, r)
	go func() { r.done <- checkRead(ctx, s, off, n) }()
}

// drop ends region i, or its wait.
func (w *world) drop(t *rapid.T, i int, h *heldRegion, unsafe bool) {
	w.regions = append(w.regions[:i], w.regions[i+1:]...)
	h.cancel()
	if h.done != nil {
		h.r = <-h.done
	}
	switch {
	case h.r == nil:
	case unsafe:
		w.unsafe = true
		w.late = append(w.late, h.r.Segment())
		h.r.Quarantine(verbs.ErrUnsafe)
	default:
		h.r.Release()
	}
}
