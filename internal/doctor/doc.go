// Package doctor finds out what a mount would do and why: it checks the machine,
// its RDMA devices, the way to the S3 endpoint and the server, moves a megabyte
// both ways, and names the remedy for everything that is not as it should be.
//
// It also holds what is known about the statuses of failed work requests, see
// StatusHelp.
package doctor
