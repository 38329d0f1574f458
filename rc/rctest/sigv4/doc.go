// Package sigv4 computes AWS Signature Version 4 of requests in headers, for test
// peers of hipobj-rc-v2. It is apart from the signer that the product uses, so
// that the two check each other, and signs or verifies exactly the headers it is told.
package sigv4
