package verbs

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemory(t *testing.T) {
	page := os.Getpagesize()
	m, err := NewMemory("test", page+1)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Bytes()) != 2*page {
		t.Errorf("%d bytes", len(m.Bytes()))
	}
	m.Bytes()[page] = 7
	var b [1]byte
	if _, err := m.File().ReadAt(b[:], int64(page)); err != nil || b[0] != 7 {
		t.Errorf("the file has %d, %v", b[0], err)
	}
	for _, size := range []int64{int64(page), int64(3 * page)} {
		if err := unix.Ftruncate(int(m.File().Fd()), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("resize to %d: %v", size, err)
		}
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if m.Bytes() != nil {
		t.Error("a closed memory has bytes")
	}
	for _, size := range []int{0, -1} {
		if _, err := NewMemory("test", size); !errors.Is(err, ErrInvalid) {
			t.Errorf("memory of %d bytes: %v", size, err)
		}
	}
}

// region is an MR without a device.
type region struct {
	MR
	buf []byte
}

func (r region) Addr() uint64  { return 1 << 40 }
func (r region) LKey() uint32  { return 5 }
func (r region) Bytes() []byte { return r.buf }

func TestSegment(t *testing.T) {
	r := region{buf: make([]byte, 100)}
	s := Segment{Buf: r.buf[10:90], MR: r, Off: 10}
	sub := s.Slice(5, 20)
	if &sub.Buf[0] != &r.buf[15] || len(sub.Buf) != 20 || cap(sub.Buf) != 20 {
		t.Errorf("slice of %d, capacity %d", len(sub.Buf), cap(sub.Buf))
	}
	if got, want := sub.SGE(), (SGE{Addr: 1<<40 + 15, Length: 20, LKey: 5}); got != want {
		t.Errorf("SGE %+v, want %+v", got, want)
	}
}
