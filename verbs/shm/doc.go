// Package shm is a software RDMA device: reliable-connection queue pairs
// between processes of one user on one host, or inside one process. It is the
// device of machines without RDMA hardware and the one tests run on, so it is
// stricter than hardware wherever hardware is lenient.
//
// # How a WRITE travels
//
// Every device listens on an abstract unix socket named after its user and GID;
// peers share the network namespace and the user. A QP is refused its way to RTR
// with verbs.ErrUnreachable while nobody listens for the peer's GID. The requester sends a small frame that
// names its source memory; a read-only descriptor of the memfd goes along when the
// peer has not seen it yet. The *responder* judges the request (QP state, peer, PSN, rkey, rights, bounds,
// posted receive), copies the bytes from its mapping of the requester's memfd
// into its own region, consumes the receive, and answers. No process ever has a
// writable mapping of another one's memory. Taking rights away is therefore a
// local matter: after MR.Close, or after a QP left RTR/RTS, no byte lands.
//
// In the other direction a requester that gives up a WR advances the epoch of
// its QP in a page its peers map. A responder that is still copying sees that
// and does not complete, so torn data is never announced as delivered.
//
// # Reliability
//
// The socket is treated as a lossy wire. Frames carry PSNs; a frame that is
// dropped, by fault injection or because the peer's QP is not in RTR yet, is sent
// again after the ACK timeout, up to RetryCnt times.
//
// # Lock order
//
// qp.mu → qp.copyMu → mr.mu; qp.mu → cq.mu → compChannel.mu. Device.mu,
// outConn.mu and inConn.mu are taken last and never held over another lock.
package shm
