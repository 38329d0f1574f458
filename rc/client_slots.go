package rc

import (
	"context"
	"sync"
	"time"
)

// throttleTime is how long a refused server is asked for half as much.
const throttleTime = 10 * time.Second

// slots bounds the concurrent sessions of an endpoint (section 15.2).
type slots struct {
	mu      sync.Mutex
	max     int
	bound   int
	inUse   int
	until   time.Time // when bound returns to max
	waiters []chan struct{}
}

func newSlots(n int) *slots { return &slots{max: n, bound: n} }

// acquire waits for a slot, first come first served.
func (s *slots) acquire(ctx context.Context) error {
	s.mu.Lock()
	if len(s.waiters) == 0 && s.inUse < s.limitLocked() {
		s.inUse++
		s.mu.Unlock()
		return nil
	}
	w := make(chan struct{}, 1)
	s.waiters = append(s.waiters, w)
	s.mu.Unlock()
	select {
	case <-w:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.waiters {
		if other == w {
			s.waiters = append(s.waiters[:i], s.waiters[i+1:]...)
			return context.Cause(ctx)
		}
	}
	// The slot was handed over at the same moment.
	s.inUse--
	s.wakeLocked()
	return context.Cause(ctx)
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse--
	s.wakeLocked()
}

// throttle halves the bound for throttleTime. Refusals within that time halve it
// no further: they are answers to requests sent before.
func (s *slots) throttle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limitLocked() == s.max {
		s.bound = max(1, s.max/2)
	}
	s.until = time.Now().Add(throttleTime)
	time.AfterFunc(throttleTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wakeLocked()
	})
}

func (s *slots) limitLocked() int {
	if s.bound < s.max && !time.Now().Before(s.until) {
		s.bound = s.max
	}
	return s.bound
}

func (s *slots) wakeLocked() {
	for len(s.waiters) > 0 && s.inUse < s.limitLocked() {
		s.inUse++
		s.waiters[0] <- struct{}{}
		s.waiters = s.waiters[1:]
	}
}

func (s *slots) state() (inUse, bound int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse, s.limitLocked()
}
