// Package fs serves S3 buckets as a FUSE file system: nodes, handles, errno
// and kernel settings. Bytes come from package cache, objects from package
// store; whether a byte travels by RDMA or HTTP is never decided here.
//
// # Nodes and versions
//
// A node is a name in the tree: a dir or a file (regular or symbolic link).
// While a file has open handles it stands for one version of its object (one
// ETag), which only local writes may change. When a look at the bucket shows
// another version, the node is superseded: it keeps its handles, as a file
// replaced by rename(2) does, and a fresh node takes the name. An open that
// meets a version the kernel has not been told of answers ESTALE, on which the
// kernel walks the path again and learns size, times and content together.
// Hence two versions never share one kernel page cache.
//
// # Writing
//
// A file that is written to has a spool: a sparse local file (package spool) with
// its whole content. From then on the spool is the truth of the node, for every
// handle, until the last handle is closed. FLUSH and FSYNC store a changed
// spool under the key, conditional on the version it was made from.
//
// As long as there is something to store, the spool has a record of what it is
// meant to become, made before the first change (edit) and kept true by journal.
// The next mount replays what a killed one left (recover): under the same
// condition, and after it has aborted the multipart uploads that were under way.
//
// # Locking
//
// Locks are taken in this order; a later one may be held alone.
//
//  1. filesystem.dirRename: one rename of a directory at a time. Then
//     filesystem.gate: what stores or deletes a key enters it, before it takes
//     anything else, and waits there while a directory above the key is renamed.
//  2. file.up: one upload, rename, unlink or metadata change of a file at a
//     time. Its holder may talk to the server. The path of a file cannot change
//     under a holder.
//  3. file.io: content of the spool. Writers exclusively; readers and the
//     upload shared. A fetch into the spool holds it exclusively.
//  4. file.journaling: the record of the spool. Held for local disk I/O.
//  5. filesystem.mu: the tree, inode numbers, the set of dirty files.
//  6. file.mu: the fields of one file.
//
// 1 to 3 are waited for under a context, so that an interrupted call returns;
// 4 to 6 are never held across a request. The kernel serializes changes of one
// directory (create, unlink, rename, mkdir, rmdir); only a LOOKUP that
// revalidates may run beside them, and detects them by dir.seq.
// The kernel is never notified: versions change by ESTALE and by not setting
// FOPEN_KEEP_CACHE.
package fs
