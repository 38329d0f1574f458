// Package testdevice opens the RDMA device that tests run on: the software
// device, or the real ones that the environment names. Tests that only need
// verbs thereby run on both, and each that needs more says so.
//
// The package is imported by tests only.
package testdevice
