// Package token has the codecs of the hipobj-rc-v2 protocol: the 44-byte token,
// every header of the four control requests and their answers, request
// signatures and the transfer checksum. Nothing in it does I/O.
//
// Encoders write one canonical form. Decoders of requests are as lenient as the
// protocol asks of a server, decoders of answers as strict as it asks of a
// client (section 3 of the protocol).
package token
