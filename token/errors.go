package token

import "errors"

// ErrMetaTooLarge is wrapped by the error about metadata over its size limit,
// which has an S3 error code of its own.
var ErrMetaTooLarge = errors.New("metadata too large")

// SyntaxError tells which header (or field) of a message is malformed. Its
// text never repeats the offending value, which may be a key or token.
type SyntaxError struct {
	Header string // canonical header name
	Reason string
	Err    error // nil, or a sentinel of this package
}

func (e *SyntaxError) Error() string { return e.Header + ": " + e.Reason }

func (e *SyntaxError) Unwrap() error { return e.Err }

func syntax(header, reason string) error { return &SyntaxError{Header: header, Reason: reason} }
