package ibv

import (
	"fmt"
	"sync"
	"sync/atomic"

	"s3rdmafs/verbs"
)

// object is the life of one verbs object. Uses run concurrently with each
// other and never with the destruction.
type object struct {
	mu       sync.RWMutex
	closed   bool
	children atomic.Int64
}

// use runs f while the object is surely alive.
func (o *object) use(f func() error) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.closed {
		return verbs.ErrClosed
	}
	return f()
}

// retain counts a dependent object about to be made, until release. No lock
// is held meanwhile, so an object may be retained twice, as one CQ by a QP.
func (o *object) retain() error {
	return o.use(func() error {
		o.children.Add(1)
		return nil
	})
}

// retainAll retains each of objs or none.
func retainAll(objs ...*object) error {
	for i, o := range objs {
		if err := o.retain(); err != nil {
			for _, done := range objs[:i] {
				done.release()
			}
			return err
		}
	}
	return nil
}

// release undoes one retain.
func (o *object) release() { o.children.Add(-1) }

// close destroys the object once. When destroy fails the object lives on.
func (o *object) close(what string, destroy func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if n := o.children.Load(); n > 0 {
		return fmt.Errorf("close %s: %w: %d dependent objects", what, verbs.ErrBusy, n)
	}
	if err := destroy(); err != nil {
		return err
	}
	o.closed = true
	return nil
}

func releaseAll(objs []*object) {
	for _, o := range objs {
		o.release()
	}
}
