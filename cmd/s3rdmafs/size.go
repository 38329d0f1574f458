package main

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
)

// size is a number of bytes on the command line: 2GiB, 512M, 1000000.
type size int64

func (s *size) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("%q is not a size such as 2GiB or 512MiB", text)
	}
	*s = size(n)
	return nil
}
