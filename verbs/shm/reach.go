package shm

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// reach fails when nobody who could be a peer listens for that GID. All other
// troubles are those of a lossy wire, and may pass.
func (d *Device) reach(gid verbs.GID) error {
	if _, err := d.connTo(gid); !errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	why := "no process here has it now: it has ended, or is on another host or in another network namespace"
	if user, ok := ownerOf(gid); ok {
		why = "it belongs to user " + user
	}
	return fmt.Errorf("%w: the software device works between processes of one user on one host; this process is of user %d and the device with GID %v is not there: %s",
		verbs.ErrUnreachable, os.Geteuid(), gid, why)
}

// ownerOf looks up whose socket listens for the GID.
func ownerOf(gid verbs.GID) (user string, ok bool) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return "", false
	}
	defer f.Close()
	suffix := "-" + hex.EncodeToString(gid[:])
	for s := bufio.NewScanner(f); s.Scan(); {
		_, name, found := strings.Cut(s.Text(), socketPrefix)
		if user, ours := strings.CutSuffix(name, suffix); found && ours {
			return user, true
		}
	}
	return "", false
}
