package rc_test

import (
	"net/http"
	"testing"

	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// TestServerGetQPTakesNothing: the QP of a GET has no rights (section 12.2), so an
// rkey of another session's buffer, which is in the same PD, is of no use on it.
func TestServerGetQPTakesNothing(t *testing.T) {
	e := startServer(t, serverConfig{})
	const size = 100_000
	data := randomBytes(1, size)
	e.objects.put("/b/k", data)
	put := e.open(rc.OpPut, "/b/victim", size)
	copy(put.mr.Bytes(), data)
	get := e.open(rc.OpGet, "/b/k", size)

	if err := get.conn.PostSend(verbs.SendWR{
		ID: 9, Opcode: verbs.OpWrite, Signaled: true,
		SGEs:       []verbs.SGE{{Addr: get.mr.Addr(), Length: size, LKey: get.mr.LKey()}},
		RemoteAddr: put.reply.MRAddr, RKey: put.reply.MRRKey,
	}); err != nil {
		t.Fatal(err)
	}
	// The server's QP is in RTS since PREPARE, and the receive of the GET flushed.
	statuses := map[uint64]verbs.WCStatus{}
	for range 2 {
		wc := get.completion()
		statuses[wc.ID] = wc.Status
	}
	if s := statuses[9]; s != verbs.WCRemInvReqErr && s != verbs.WCRemAccessErr {
		t.Errorf("a write through a GET's QP: %v", s)
	}
	if a := e.must(token.PathReady, get.ready().Header()); a.status != http.StatusBadGateway {
		t.Errorf("READY of the GET: %v", a)
	}
	put.finishPut()
	o, _ := e.objects.get("/b/victim")
	wantBytes(t, "the other session's object", o.data, data)
	e.gone()
}
