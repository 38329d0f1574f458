package fs

import (
	"context"
	"strings"
	"syscall"
)

// gate keeps the renames of directories and the changes of the keys below them
// apart. A change is an upload, a removal, a new directory: whatever writes or
// deletes a key. Guarded by filesystem.mu.
type gate struct {
	tree    *treeRename // the one under way; dirRename lets in one
	changes map[*change]struct{}
}

// treeRename is a rename of a directory from one prefix to another.
type treeRename struct {
	bucket, from, into string
	done               chan struct{}
}

// change is a change of keys under way.
type change struct {
	s    *filesystem
	at   []spot
	done chan struct{}
}

// end lets renames of directories above the keys begin.
func (c *change) end() {
	c.s.mu.Lock()
	delete(c.s.gate.changes, c)
	c.s.mu.Unlock()
	close(c.done)
}

// spot is a bucket and a key.
type spot struct{ bucket, key string }

// within reports whether r touches one of the keys.
func (r *treeRename) within(at []spot) bool {
	for _, k := range at {
		if k.bucket == r.bucket && (strings.HasPrefix(k.key, r.from) || strings.HasPrefix(k.key, r.into)) {
			return true
		}
	}
	return false
}

// beginChange waits until no directory above the keys is being renamed. where
// tells the keys, by the tree as it is when called, under filesystem.mu.
func (s *filesystem) beginChange(ctx context.Context, where func() []spot) (*change, error) {
	for {
		s.mu.Lock()
		at := where()
		r := s.gate.tree
		if r == nil || !r.within(at) {
			c := &change{s, at, make(chan struct{})}
			if s.gate.changes == nil {
				s.gate.changes = map[*change]struct{}{}
			}
			s.gate.changes[c] = struct{}{}
			s.mu.Unlock()
			return c, nil
		}
		s.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// enter is beginChange for a call of the kernel: for nodes and, when d is not
// nil, for a name in d. It has no deadline, for a rename takes its time.
func (s *filesystem) enter(ctx context.Context, d *dir, name string, nodes ...node) (_ *change, errno syscall.Errno) {
	c, done := s.unbounded(ctx)
	defer done()
	ch, err := s.beginChange(c, func() []spot {
		at := s.spotsLocked(nodes...)
		if d == nil {
			return at
		}
		if bucket, prefix, ok := s.placeLocked(d); ok {
			at = append(at, spot{bucket, prefix + name})
		}
		return at
	})
	return ch, errnoOf(causeOf(c, err))
}

// spotsLocked are the places of those nodes that have one.
func (s *filesystem) spotsLocked(nodes ...node) []spot {
	var at []spot
	for _, n := range nodes {
		if bucket, key, ok := s.placeLocked(n); ok {
			at = append(at, spot{bucket, key})
		}
	}
	return at
}

// beginTree waits until nothing below the two prefixes is being changed, and
// keeps it so until end is called. Caller holds filesystem.dirRename.
func (s *filesystem) beginTree(ctx context.Context, bucket, from, into string) (end func(), err error) {
	r := &treeRename{bucket: bucket, from: from, into: into, done: make(chan struct{})}
	var wait []*change
	s.mu.Lock()
	s.gate.tree = r
	for c := range s.gate.changes {
		if r.within(c.at) {
			wait = append(wait, c)
		}
	}
	s.mu.Unlock()
	end = func() {
		s.mu.Lock()
		s.gate.tree = nil
		s.mu.Unlock()
		close(r.done)
	}
	for _, c := range wait {
		select {
		case <-c.done:
		case <-ctx.Done():
			end()
			return nil, ctx.Err()
		}
	}
	return end, nil
}
