package fs

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a listing said is forgotten once it says nothing any more, however large
// the directory, and not before.
func TestRecentAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &filesystem{}
		d := &dir{}
		remember := func(name string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.rememberLocked(d, name, listed{at: time.Now()})
		}
		remembered := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(d.recent)
		}
		after := func(wait time.Duration) {
			<-time.After(wait)
			synctest.Wait()
		}
		for round := range 2 {
			remember("a")
			after(shadowTTL / 2)
			remember("b")
			if n := remembered(); n != 2 {
				t.Errorf("round %d: %d names are remembered, want 2", round, n)
			}
			after(2 * shadowTTL)
			if n := remembered(); n != 0 || d.recent != nil {
				t.Errorf("round %d: %d names are remembered for ever", round, n)
			}
		}
	})
}
