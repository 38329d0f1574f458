// Package rctest is a second server of hipobj-rc-v2, written apart from package
// rc's: own parsers, plain verbs calls, one QP and CQ per session. Tests of the
// client run against it, because it can behave like each of the protocol's public
// servers (section 16 of the specification) and misbehave in every way of
// section 13.3. It notes what a request does that no client of ours may do.
package rctest
