package rctest

import "net/http"

// Hooks make a peer misbehave. Each may be nil; they are called on the goroutine
// of the request and may block.
type Hooks struct {
	// Answer may answer a request instead of the peer, and then returns true.
	Answer func(w http.ResponseWriter, r *http.Request) bool
	// Deny refuses access to an object, in PREPARE.
	Deny func(op, name string) bool
	// Unservable tells that an object can only be had by HTTP.
	Unservable func(name string) bool
	// PrepareHeader may change the headers of a good answer to PREPARE.
	PrepareHeader func(h http.Header)
	// Ready is called when READY was claimed, before the QP leaves INIT.
	Ready func()
	// BeforeWrite is called when the QP is in RTS and before a GET's first write.
	BeforeWrite func()
	// NoWrite answers FINAL of a GET without having written.
	NoWrite bool
	// Immediate may change a GET's immediate.
	Immediate func(cookie uint32) uint32
	// Remote may change the destination of a GET.
	Remote func(addr uint64, rkey uint32) (uint64, uint32)
	// Intrude makes a PUT's server write into the client's memory first.
	Intrude func() (addr uint64, rkey uint32)
	// Store may refuse to store a PUT with an S3 error.
	Store func() (status int, code string)
	// BeforeFinal is called when all is done, before FINAL is answered. Returning
	// true drops the connection instead.
	BeforeFinal func() (drop bool)
	// FinalHeader may change the headers of FINAL.
	FinalHeader func(h http.Header)
	// Cancel is called before CANCEL is answered.
	Cancel func()
}
