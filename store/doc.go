// Package store gives the file system buckets and objects. Control requests
// and HTTP bytes go through minio-go; the bytes of large enough transfers go
// through an RDMA client where the endpoint speaks hipobj-rc-v2. Which of the
// two carries a transfer is decided in one place (choose) and counted.
//
// Everything a caller sees is one version of an object: reads name an ETag and
// fail with ErrChanged when the object is another one, whatever transport
// carried the bytes.
//
// Retries live here and nowhere below: minio-go and the RDMA client each try
// once. A request whose answer was lost and that changed something is never
// repeated before a HEAD showed what is there.
//
// All methods of Store and Upload are safe for concurrent use. No lock is held
// across a network call.
package store
