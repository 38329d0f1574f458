package shm_test

import (
	"log/slog"
	"testing"

	"s3rdmafs/verbs/shm"
	"s3rdmafs/verbs/verbstest"
)

func opener(faults func() *shm.Faults) verbstest.Opener {
	return func() (verbstest.Peer, error) {
		dev, err := shm.Open(shm.Options{Faults: faults(), Logger: slog.New(slog.DiscardHandler)})
		return verbstest.Peer{Device: dev, ChecksSender: true}, err
	}
}

func TestSuite(t *testing.T) {
	verbstest.Run(t, opener(func() *shm.Faults { return nil }))
}
