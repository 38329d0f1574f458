// Package rc moves object bytes between an S3 server and registered memory by
// hipobj-rc-v2 sessions over reliable connections. Client is the compute
// node's side and Server the gateway's; both speak the protocol of
// doc/PROTOCOL.md, whose extensions they negotiate per endpoint. Section numbers
// in comments are those of the hipobj-rc-v2 specification.
//
// # Memory safety
//
// What a transfer reads from or writes to belongs to the transfer until Get or
// Put (Client), or the session's teardown (Server), is over. It is given
// back only when the peer has no more business with it: after a good completion
// together with a good FINAL, or after the QP left RTS and every posted work
// request came back. The former is a matter of the peer's obedience where the
// session is kept, the latter is not. Where a QP can be neither drained nor destroyed, the
// error wraps verbs.ErrUnsafe and the memory must stay registered and out of use for good.
//
// # Locks of the client
//
// Client.keptMu, endpoint.mu, slots.mu and resolver.mu are leaves: none is
// taken while another is held, and none is held during I/O or a verbs call.
package rc
