package ibv

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// pinned returns the bytes this process has pinned, as the kernel counts
// them against the limit.
func pinned() uint64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for s := bufio.NewScanner(bytes.NewReader(status)); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), "VmPin:")
		if !ok {
			continue
		}
		kib, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		return kib << 10
	}
	return 0
}

// registerError explains a failed registration of length bytes: the kernel
// says ENOMEM (EPERM with a limit of zero) for the limit as for lack of memory.
func registerError(errno unix.Errno, length int) error {
	limit, unlimited := verbs.MemlockLimit()
	return registerErrorAt(errno, length, pinned(), limit, unlimited)
}

func registerErrorAt(errno unix.Errno, length int, pinned, limit uint64, unlimited bool) error {
	short := errno == unix.ENOMEM && pinned+uint64(length) > limit
	if !unlimited && (short || errno == unix.EPERM) {
		return fmt.Errorf("%w: %d bytes more than the %d pinned, limit %d (ulimit -l)", verbs.ErrMemlock, length, pinned, limit)
	}
	return wrap("ibv_reg_mr", errno)
}
