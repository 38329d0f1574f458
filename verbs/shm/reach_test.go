package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"s3rdmafs/verbs"
)

// A queue pair towards a GID that is nobody's, or another user's, is refused at
// once and says why, instead of failing its first request seconds later. It stays
// in INIT, ready for a peer that is there.
func TestPeerOutOfReach(t *testing.T) {
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 64, nil)
	gone, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	goneGID := gone.(*Device).gid
	mustClose(t, gone)
	foreignGID := b.dev.gid
	foreignGID[15] ^= 1
	other := os.Geteuid() + 1
	ln, err := net.ListenUnix("unixpacket", socketAddr(other, foreignGID))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()

	qa, qb := a.qp(t), b.qp(t)
	modify(t, qa, initAttr())
	for want, gid := range map[string]verbs.GID{
		"it has ended": goneGID,
		fmt.Sprintf("it belongs to user %d", other): foreignGID,
	} {
		attr := rtrAttr(a, 77, 5)
		attr.AH.DGID = gid
		err := qa.Modify(attr, verbs.MaskRTR)
		if !errors.Is(err, verbs.ErrUnreachable) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "between processes of one user") || !strings.Contains(err.Error(), fmt.Sprintf("of user %d", os.Geteuid())) {
			t.Errorf("got %v, want %q", err, want)
		}
		if s, err := qa.State(); s != verbs.StateInit || err != nil {
			t.Errorf("QP in %v, %v", s, err)
		}
	}
	connect(t, a, b, qa, qb, 10, 20)
	src, dst := a.reg(t, 0), b.reg(t, remote)
	postRecv(t, qb, 1)
	post(t, qa, src, dst, 4096, 2)
	if wc := a.next(t); wc.Status != verbs.WCSuccess {
		t.Error(wc.Status)
	}
}
