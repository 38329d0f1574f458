package cache

import (
	"container/list"
	"context"
)

// waiter stands in a queue for memory.
type waiter struct {
	serve func() bool // tries to give what is wanted; c.mu is held
	ready chan struct{}
}

// wait stands in line until serve succeeded or ctx ended. c.mu is held on
// entry and return. When both happened, it succeeds.
func (c *Cache) wait(ctx context.Context, queue *list.List, serve func() bool) error {
	w := &waiter{serve: serve, ready: make(chan struct{})}
	e := queue.PushBack(w)
	c.waits++
	c.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
	}
	c.mu.Lock()
	select {
	case <-w.ready:
		return nil
	default:
	}
	queue.Remove(e)
	c.pump()
	return ctx.Err()
}

// pump serves those who wait, in order, as far as memory goes. It must run
// after each change that frees memory or makes it evictable.
func (c *Cache) pump() {
	// Writers first: as long as one waits, readers keep out of its half.
	for _, queue := range [...]*list.List{&c.writers, &c.readers} {
		for e := queue.Front(); e != nil; e = queue.Front() {
			w := e.Value.(*waiter)
			if !w.serve() {
				break
			}
			queue.Remove(e)
			close(w.ready)
		}
	}
}
