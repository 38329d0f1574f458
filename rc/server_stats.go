package rc

import "sync/atomic"

// ServerStats is a snapshot of a Server.
type ServerStats struct {
	Sessions     int   // open, of all kinds
	KeptSessions int   // of them kept ones
	StagingBytes int64 // registered now, in use or idle
	StagingInUse int64 // registered and taken by sessions
	Quarantined  int64 // bytes out of use for good, because a QP could not be drained

	Prepared           uint64 // sessions made
	Got, Put           uint64 // transfers that succeeded
	Failed             uint64 // transfers that failed after their data phase began
	Refused            uint64 // requests answered with an error, failed transfers too
	BytesGot, BytesPut uint64
}

type serverCounters struct {
	prepared, got, put, failed, refused, bytesGot, bytesPut atomic.Uint64
}

// Stats may be called at any time.
func (s *Server) Stats() ServerStats {
	st := ServerStats{
		Prepared: s.count.prepared.Load(),
		Got:      s.count.got.Load(),
		Put:      s.count.put.Load(),
		Failed:   s.count.failed.Load(),
		Refused:  s.count.refused.Load(),
		BytesGot: s.count.bytesGot.Load(),
		BytesPut: s.count.bytesPut.Load(),
	}
	s.mu.Lock()
	st.Sessions = len(s.sessions)
	for _, sess := range s.sessions {
		if sess.kept {
			st.KeptSessions++
		}
	}
	s.mu.Unlock()
	st.StagingBytes, st.StagingInUse, st.Quarantined = s.staging.stats()
	return st
}
