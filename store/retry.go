package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// call names an operation in errors.
type call struct{ op, bucket, key string }

const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 5 * time.Second
)

// retrier decides whether a failed operation is tried again. It belongs to one
// operation.
type retrier struct {
	s         *Store
	c         call
	until     time.Time
	pause     time.Duration
	refreshed bool
	nonsense  int    // wrong answers so far
	last      *Error // what went wrong before the context ended
}

// maxNonsense wrong answers end the tries: a server that does not know better
// will not learn.
const maxNonsense = 3

func (s *Store) retrier(c call) *retrier {
	return &retrier{s: s, c: c, until: time.Now().Add(s.o.RetryFor), pause: s.firstPause}
}

// progress starts the allowance over: what moves may take long.
func (r *retrier) progress() {
	r.until, r.pause = time.Now().Add(r.s.o.RetryFor), r.s.firstPause
}

// again returns nil when the operation is to be tried once more, after the pause;
// else the error to return.
func (r *retrier) again(ctx context.Context, e *Error, f fate) error {
	if ctx.Err() != nil {
		if r.last != nil {
			e = r.last
		}
		return withContextError(ctx, e)
	}
	r.last = e
	if tokenExpired(e) && !r.refreshed {
		r.refreshed = true
		r.s.c.Credentials.Expire()
		r.s.count.retries.Add(1)
		return nil
	}
	if f == fateFinal {
		return e
	}
	if e.Kind == ErrBadAnswer {
		if r.nonsense++; r.nonsense >= maxNonsense {
			return e
		}
	}
	pause := r.pause/2 + rand.N(r.pause/2+1)
	if time.Now().Add(pause).After(r.until) {
		return e
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return withContextError(ctx, e)
	case <-t.C:
	}
	r.pause = min(2*r.pause, backoffMax)
	r.s.count.retries.Add(1)
	r.s.log.Debug("retry", "op", r.c.op, "bucket", r.c.bucket, "key", r.c.key, "after", e)
	return nil
}

// withContextError keeps the last failure: "timed out" alone explains nothing.
func withContextError(ctx context.Context, e *Error) *Error {
	if errors.Is(e, ctx.Err()) {
		return e
	}
	e2 := *e
	e2.Err = errors.Join(ctx.Err(), e.Err)
	return &e2
}

// do runs an operation that may be repeated whatever became of it. Every try
// gets limit.
func (s *Store) do(ctx context.Context, c call, limit time.Duration, try func(context.Context) error) error {
	r := s.retrier(c)
	for {
		err := within(ctx, limit, try)
		if err == nil {
			s.answered(c.bucket)
			return nil
		}
		e, f := s.judge(ctx, c, err)
		if err := r.again(ctx, e, f); err != nil {
			return err
		}
	}
}

var errStalled = errors.New("no byte moved")

func within(ctx context.Context, d time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	ctx, sent := noteSent(ctx)
	return sent.explain(try(ctx))
}

// sentNote tells whether a request went out under a context.
type sentNote struct{ sent atomic.Bool }

type sentKey struct{}

func noteSent(ctx context.Context) (context.Context, *sentNote) {
	n := &sentNote{}
	return context.WithValue(ctx, sentKey{}, n), n
}

// requestSent is what the transport calls.
func requestSent(ctx context.Context) {
	if n, ok := ctx.Value(sentKey{}).(*sentNote); ok {
		n.sent.Store(true)
	}
}

// notSentError is what the S3 library refused by itself; asking again cannot help.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// explain marks an error that came up although nothing was sent.
func (n *sentNote) explain(err error) error {
	if err == nil || n.sent.Load() {
		return err
	}
	return notSentError{err}
}

// watchdog ends a context when nothing touched it for idle.
type watchdog struct {
	t    *time.Timer
	idle time.Duration
	sent *sentNote
}

func withWatchdog(ctx context.Context, idle time.Duration) (context.Context, *watchdog, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, sent := noteSent(ctx)
	w := &watchdog{t: time.AfterFunc(idle, func() { cancel(errStalled) }), idle: idle, sent: sent}
	return ctx, w, func() { w.t.Stop(); cancel(nil) }
}

func (w *watchdog) touch() { w.t.Reset(w.idle) }

// explain names the cause of an error of a request under ctx.
func (w *watchdog) explain(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return fmt.Errorf("%w for %v: %w", errStalled, w.idle, err)
	}
	return w.sent.explain(err)
}

// watched touches the watchdog for everything read through it.
type watched struct {
	io.Reader
	w *watchdog
}

func (r watched) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.w.touch()
	}
	return n, err
}
