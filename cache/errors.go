package cache

import "errors"

var (
	// ErrInvalid: an argument is out of range.
	ErrInvalid = errors.New("cache: invalid argument")
	// ErrClosed: the cache, or the stream, was closed.
	ErrClosed = errors.New("cache: closed")
	// ErrExhausted: so much memory is in quarantine that the request can
	// never be met.
	ErrExhausted = errors.New("cache: memory lost to quarantine")
	// ErrHeld: Close found bytes that are still in use.
	ErrHeld = errors.New("cache: memory still in use")
)
