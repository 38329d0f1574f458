package fs

import (
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxWrite is the largest READ and WRITE, bytes: all that the kernel allows.
	maxWrite = 1 << 20
	// maxBackground is how many read-ahead requests the kernel keeps under way.
	maxBackground = 64
	// readAheadKiB is how far the kernel reads ahead. Its default of 128 KiB
	// would cut reads into pieces of that size.
	readAheadKiB = 8 << 10
)

// tune raises the read-ahead of the mount at dir. Without the right to, reads
// are slower and nothing else.
func tune(dir string, log *slog.Logger) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		log.Warn("kernel settings left alone", "err", err)
		return
	}
	path := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	if err := os.WriteFile(path, fmt.Append(nil, readAheadKiB), 0); err != nil {
		log.Info("kernel read-ahead left at its default", "err", err)
		return
	}
	log.Debug("kernel read-ahead raised", "kib", readAheadKiB)
}
