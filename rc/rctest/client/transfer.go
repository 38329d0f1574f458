package client

import (
	"context"
	"errors"
	"time"
)

// Get fetches size bytes from offset on of a target in the form of section 7.2.
func (c *Client) Get(ctx context.Context, target string, offset int64, size int) ([]byte, Final, error) {
	s, err := c.Open("GET", size)
	if err != nil {
		return nil, Final{}, err
	}
	f, err := s.run(ctx, target, offset)
	var data []byte
	if err == nil {
		data = append(data, s.Bytes()[:f.Bytes]...)
	}
	return data, f, errors.Join(err, s.end(ctx, err))
}

// Put stores data under a target.
func (c *Client) Put(ctx context.Context, target string, data []byte) (Final, error) {
	s, err := c.Open("PUT", len(data))
	if err != nil {
		return Final{}, err
	}
	copy(s.Bytes(), data)
	f, err := s.run(ctx, target, 0)
	return f, errors.Join(err, s.end(ctx, err))
}

// run is the transfer up to FINAL.
func (s *Session) run(ctx context.Context, target string, offset int64) (Final, error) {
	pr := &s.c.o.Profile
	if err := s.Prepare(ctx, target, offset); err != nil {
		return Final{}, err
	}
	if err := s.Connect(); err != nil {
		return Final{}, err
	}
	if s.op == "GET" && !pr.LateReceive {
		if err := s.Receive(); err != nil {
			return Final{}, err
		}
	}
	type reply struct {
		f   Final
		err error
	}
	replies := make(chan reply, 1)
	readyCtx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() {
		f, err := s.Ready(readyCtx)
		replies <- reply{f, err}
	}()
	if err := s.afterReady(ctx); err != nil {
		giveUp()
		<-replies
		return Final{}, err
	}
	err := s.Completion(ctx)
	if err != nil {
		// What the server said explains more than the completion, if it said something.
		wait, cancel := context.WithTimeout(ctx, s.c.o.Deadline)
		defer cancel()
		select {
		case r := <-replies:
			return Final{}, errors.Join(err, r.err)
		case <-wait.Done():
			giveUp()
			<-replies
			return Final{}, err
		}
	}
	r := <-replies
	return r.f, r.err
}

// afterReady does what comes once READY is on its way.
func (s *Session) afterReady(ctx context.Context) error {
	if s.op == "GET" {
		if s.c.o.Profile.LateReceive {
			return s.Receive()
		}
		return nil
	}
	grace := time.NewTimer(s.c.o.Profile.Grace)
	defer grace.Stop()
	select {
	case <-grace.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.Write()
}

// end gives the session up if the transfer failed, and frees everything.
func (s *Session) end(ctx context.Context, failed error) error {
	// The answer to CANCEL means nothing, not even that there is one.
	cancel := func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer done()
		_ = s.Cancel(ctx)
	}
	if failed != nil && s.ID != "" && s.c.o.Profile.CancelFirst {
		cancel()
	}
	err := s.Close()
	if failed != nil && s.ID != "" && !s.c.o.Profile.CancelFirst {
		cancel()
	}
	return err
}
