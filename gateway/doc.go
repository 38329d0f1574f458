// Package gateway serves S3 with the RDMA side of hipobj-rc-v2 beside it.
//
// The S3 part is versitygw's s3api on one of its backends: a directory whose
// subdirectories are the buckets (posix), or another S3 service (s3). The RC
// part is the server of package rc, mounted under /.hipobj-rc/ on the same
// listener; each of its requests goes through the authorization of the S3
// operation that it stands for.
//
// versitygw's posix backend works relative to the current directory of the
// process. A process can therefore have one posix gateway open at a time, and
// its current directory is the gateway's directory meanwhile.
//
// The gateway takes no locks of its own while it calls into rc or versitygw.
package gateway
