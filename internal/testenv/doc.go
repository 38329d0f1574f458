// Package testenv starts real gateways for tests.
//
// A gateway normally runs as a process of its own: the test binary starts
// itself again, and the copy becomes the gateway before any test runs. So no
// program has to be built, a gateway can be killed like a real one, several
// run side by side, and a test's current directory stays its own (versitygw's
// posix backend changes it). With Options.InProcess the gateway runs inside
// the test, where its internals can be looked at; one at a time.
//
// The package is imported by tests only.
package testenv
