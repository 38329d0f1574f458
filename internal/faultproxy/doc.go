// Package faultproxy stands between a client and an S3 server in tests and does
// to single requests what networks, proxies and servers do: refuse, reset, stall,
// truncate, lie. What no rule matches goes through unchanged.
//
// Requests are forwarded with their own Host and headers, so signatures stay valid.
package faultproxy
