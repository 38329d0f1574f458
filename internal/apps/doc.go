// Package apps runs programs nobody here wrote in a mount of a real gateway,
// by way of the software RDMA device. Its tests are those of make test-apps;
// each is a script of testdata, which fails when the program does not behave
// as on a local file system. Where S3 cannot do what it does, the script
// asserts the refusal, and doc/SEMANTICS.md has the reason.
package apps
