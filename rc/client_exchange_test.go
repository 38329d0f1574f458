package rc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// A PUT whose data has arrived waits for its answer when the port is lost; one
// whose data has not does not.
func TestPortLostAfterTheData(t *testing.T) {
	dev, err := shm.Open(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := verbs.NewPool(dev, verbs.PoolOptions{PD: pd})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Release(context.Background()), pool.Close(), pd.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	c := &Client{ep: newEndpoint(slog.New(slog.DiscardHandler), verbs.GIDEntry{})}
	c.o.Timeouts.setDefaults()
	c.ep.suspend("port down")
	const size = 100
	final := token.Final{Cookie: 7, Bytes: size}
	for range 20 { // of two things that are ready at once either may come first
		tr := &transfer{op: OpPut, seg: verbs.Segment{Buf: make([]byte, size)}, deadline: time.Now().Add(time.Minute)}
		x := &exchange{c: c, link: &link{conn: conn}, t: tr, cookie: 7, posted: true, completed: true}
		replies := make(chan reply, 1)
		replies <- reply{answer: answer{status: http.StatusOK, header: final.Header()}}
		if fail, _ := x.wait(t.Context(), nil, replies); fail != nil {
			t.Fatalf("with the data there: %v", fail.err)
		}
		x = &exchange{c: c, link: &link{conn: conn}, t: tr, cookie: 7, posted: true}
		if fail, _ := x.wait(t.Context(), nil, nil); fail == nil || fail.cause != causeSuspended {
			t.Fatalf("without: %+v", fail)
		}
	}
}
