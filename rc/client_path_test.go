package rc_test

import (
	"errors"
	"testing"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// TestWrongPath: an end is configured for another path than the other one. The
// transfer ends by itself, is left to HTTP, and its memory is the caller's.
func TestWrongPath(t *testing.T) {
	const size = 64 << 10
	for _, c := range []struct {
		name   string
		client func(*rc.ClientOptions)
		server func(*rc.ServerOptions)
	}{
		{"client's GID index is not in the table", func(o *rc.ClientOptions) { o.GIDIndex = 200 }, nil},
		{"server's GID index is not in the table", nil, func(o *rc.ServerOptions) { o.GIDIndex = 200 }},
		{"client's MTU is smaller", func(o *rc.ClientOptions) { o.MTU = verbs.MTU512 }, nil},
		{"server's MTU is smaller", nil, func(o *rc.ServerOptions) { o.MTU = verbs.MTU512 }},
	} {
		for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
			t.Run(name("%s, %s", c.name, op), func(t *testing.T) {
				d := newDuo(t, duoOptions{server: c.server})
				cl := d.client(func(o *rc.ClientOptions) {
					impatient(o)
					if c.client != nil {
						c.client(o)
					}
				})
				d.objects.put("/b/k", random(size))
				var err error
				if op == rc.OpGet {
					err = d.get(cl, "k", size)
				} else {
					err = d.put(cl, "new", size)
				}
				plant(d.seg.Buf)
				var e *rc.Error
				if !errors.As(err, &e) || e.Action != rc.ActionHTTP && e.Action != rc.ActionUnknown || errors.Is(err, verbs.ErrUnsafe) {
					t.Fatalf("error %v", err)
				}
				if _, stored := d.objects.get("/b/new"); stored {
					t.Error("stored")
				}
				eventually(t, "the server is done", func() bool { return d.server.Stats().Sessions == 0 })
				checkCanary(t, d.seg.Buf)
			})
		}
	}
}
