package main

import (
	"errors"
	"testing"
	"time"
)

// Whoever could connect is told, also when the mount ends in the same moment.
func TestEndingTellsWhoeverConnected(t *testing.T) {
	for range 200 {
		e, err := newEnding()
		if err != nil {
			t.Fatal(err)
		}
		w := watchEnd(e.name)
		if w == nil {
			t.Fatal("cannot connect")
		}
		done := make(chan struct{})
		go func() {
			e.close(errors.New("one\ntwo"))
			close(done)
		}()
		v, err := w.verdict(time.Now().Add(time.Minute))
		if err != nil || v.Error != "one; two" {
			t.Fatalf("verdict %+v, %v", v, err)
		}
		w.close()
		<-done
	}
}
