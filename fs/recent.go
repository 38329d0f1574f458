package fs

import (
	"time"

	"s3rdmafs/store"
)

// shadowTTL is how long a name known as an object is not asked about again
// whether there is a directory of that name beside it, which would hide it. A
// listing shows one at once.
const shadowTTL = 30 * time.Second

// maxRecent is how many listed names a directory remembers before it begins
// anew.
const maxRecent = 10_000

// listed is what a listing says of a name.
type listed struct {
	info  store.Info
	isDir bool
	at    time.Time
}

// rememberLocked takes a name of a listing into d.recent, as long as it says
// anything.
func (s *filesystem) rememberLocked(d *dir, name string, l listed) {
	if d.recent == nil || len(d.recent) > maxRecent {
		d.recent = map[string]listed{}
	}
	d.recent[name] = l
	if !d.aging {
		d.aging = true
		s.ageLater(d)
	}
}

// ageLater looks at d.recent when what is in it now says nothing any more.
func (s *filesystem) ageLater(d *dir) {
	ttl := max(shadowTTL, s.o.EntryTTL)
	time.AfterFunc(ttl, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for name, l := range d.recent {
			if time.Since(l.at) >= ttl {
				delete(d.recent, name)
			}
		}
		if d.aging = len(d.recent) > 0; d.aging {
			s.ageLater(d)
		} else {
			d.recent = nil
		}
	})
}
