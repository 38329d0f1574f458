package rc

import (
	"errors"
	"testing"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

func newTestStaging(t *testing.T, limit, largest int64) *stagingPool {
	t.Helper()
	dev, err := shm.Open(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(pd.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return newStagingPool(pd, limit, largest)
}

func mustStage(t *testing.T, p *stagingPool, principal string, n int64, remote bool) *staging {
	t.Helper()
	b, err := p.get(principal, n, remote)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b.mr.Bytes())) < n {
		t.Fatalf("%d bytes where %d were asked for", len(b.mr.Bytes()), n)
	}
	return b
}

func TestStagingClasses(t *testing.T) {
	p := newStagingPool(nil, 1<<30, 5_000_000)
	for n, want := range map[int64]int{1: 64 << 10, 64 << 10: 64 << 10, 64<<10 + 1: 128 << 10, 1 << 20: 1 << 20, 4<<20 + 1: 5001216, 5_000_000: 5001216} {
		if got := p.class(n); got != want {
			t.Errorf("class(%d) = %d, want %d", n, got, want)
		}
	}
}

// A buffer is used again only by the principal, and for the direction, that had
// it before: see stagingKey.
func TestStagingReuse(t *testing.T) {
	p := newTestStaging(t, 1<<20, 1<<20)
	b := mustStage(t, p, "alice", 1000, true)
	key := b.mr.RKey()
	if err := p.put(b, true); err != nil {
		t.Fatal(err)
	}
	for _, other := range []*staging{mustStage(t, p, "bob", 1000, true), mustStage(t, p, "alice", 1000, false), mustStage(t, p, "alice", 100_000, true)} {
		if other == b {
			t.Errorf("buffer given to %+v", other.key)
		}
		if err := p.put(other, true); err != nil {
			t.Fatal(err)
		}
	}
	again := mustStage(t, p, "alice", 60_000, true)
	if again != b || again.mr.RKey() != key {
		t.Error("clean buffer was not used again")
	}
	if err := p.put(again, false); err != nil {
		t.Fatal(err)
	}
	fresh := mustStage(t, p, "alice", 1000, true)
	if fresh.mr.RKey() == key {
		t.Error("rkey of an unclean buffer is in use again")
	}
	if err := p.put(fresh, true); err != nil {
		t.Fatal(err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
}

func TestStagingLimit(t *testing.T) {
	p := newTestStaging(t, 256<<10, 256<<10)
	var held []*staging
	for range 4 {
		held = append(held, mustStage(t, p, "alice", 64<<10, true))
	}
	if _, err := p.get("alice", 1, true); !errors.Is(err, errNoStaging) {
		t.Errorf("over the limit: %v", err)
	}
	for _, b := range held {
		if err := p.put(b, true); err != nil {
			t.Fatal(err)
		}
	}
	// Idle buffers of others make room.
	big := mustStage(t, p, "bob", 256<<10, false)
	if registered, inUse, _ := p.stats(); registered != 256<<10 || inUse != 256<<10 {
		t.Errorf("registered %d, in use %d", registered, inUse)
	}
	p.quarantine(big)
	if _, err := p.get("alice", 1, true); !errors.Is(err, errNoStaging) {
		t.Errorf("quarantined memory was given out: %v", err)
	}
	if err := p.close(); !errors.Is(err, verbs.ErrUnsafe) {
		t.Errorf("close with quarantined memory: %v", err)
	}
	if registered, inUse, quarantined := p.stats(); registered != 256<<10 || inUse != 0 || quarantined != 256<<10 {
		t.Errorf("registered %d, in use %d, quarantined %d", registered, inUse, quarantined)
	}
	if err := errors.Join(big.mr.Close(), big.mem.Close()); err != nil {
		t.Error(err)
	}
}
