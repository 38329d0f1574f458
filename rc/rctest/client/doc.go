// Package client is a second client of hipobj-rc-v2, written apart from package
// rc's, with plain verbs calls. It behaves like each of the protocol's public
// clients, whose needs section 16 of the specification lists, and is as strict
// as they are about what a server answers. Tests of servers run against it.
package client
