// Package spool keeps the content of files being written on the local disk until
// it is stored, so that it outlives the process that took it.
//
// # Layout
//
//	ROOT/                     mode 0700
//	  IDENTITY/               hash of endpoint, bucket and prefix
//	    identity              the same in words
//	    1/, 2/, …             slots, one for each living mount, flocked
//	      lock
//	      ID.data             content, sparse, its size that of the file
//	      ID.rec              record: what the content is meant to become
//	    damaged/              what cannot be understood; listed, never deleted
//
// A mount takes the first slot nobody has locked. What it finds in slots whose
// owner is gone are leftovers.
//
// # What survives
//
// A record is replaced by the write of at most a page in place, or by rename, so
// that a killed process leaves the old or the new one. A data file without a
// record is worth nothing: the record is made before the first change, and taken
// away after the content is stored. Files that have ended are used again, since
// directories cost more than what is in small files.
//
// Nothing is synced to the disk on the way, since fsync(2) and close(2) of a
// program return only once the object is stored: the spool makes no promise that
// it could break at a power loss. But what a power loss leaves may be a record
// with holes in its content. Records therefore name the boot of the machine they
// were made in, and only Keep, at an orderly end, makes content and record
// durable: a leftover of an earlier boot that was not kept so is not
// Trustworthy, and is listed instead of stored.
package spool
