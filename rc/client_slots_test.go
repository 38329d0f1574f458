package rc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlotsBoundAndOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		ctx := context.Background()
		s.acquire(ctx)
		s.acquire(ctx)
		order := make(chan int, 2)
		for i := range 2 {
			go func() {
				s.acquire(ctx)
				order <- i
			}()
			synctest.Wait()
		}
		if len(order) != 0 {
			t.Fatal("more slots than the bound")
		}
		s.release()
		synctest.Wait()
		if got := <-order; got != 0 {
			t.Fatalf("waiter %d came first", got)
		}
		s.release()
		synctest.Wait()
		<-order
		s.release()
		s.release()
		if n, _ := s.state(); n != 0 {
			t.Errorf("%d slots in use at the end", n)
		}
	})
}

func TestSlotsGivenUpWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		s.acquire(context.Background())
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		got := make(chan error)
		go func() { got <- s.acquire(ctx) }()
		synctest.Wait()
		cancel(cause)
		if err := <-got; err != cause {
			t.Fatalf("acquire: %v", err)
		}
		s.release()
		if err := s.acquire(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n, _ := s.state(); n != 1 {
			t.Errorf("%d in use", n)
		}
	})
}

func TestSlotsHalvedForTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(8)
		for range 8 {
			s.acquire(context.Background())
		}
		s.throttle()
		s.throttle() // the answer to a request of the same burst
		if _, bound := s.state(); bound != 4 {
			t.Fatalf("bound after a refusal %d", bound)
		}
		got := make(chan error, 1)
		go func() { got <- s.acquire(context.Background()) }()
		for range 4 {
			s.release()
		}
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("four still run and a fifth started")
		}
		time.Sleep(throttleTime)
		synctest.Wait()
		if len(got) != 1 {
			t.Fatal("nobody woke the waiter when the bound went up")
		}
		if _, bound := s.state(); bound != 8 {
			t.Errorf("bound afterwards %d", bound)
		}
	})
	if s := newSlots(1); func() int { s.throttle(); _, b := s.state(); return b }() != 1 {
		t.Error("a bound of 1 was halved")
	}
}
