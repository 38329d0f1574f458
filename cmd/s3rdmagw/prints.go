package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"

	fiberlog "github.com/gofiber/fiber/v3/log"
)

// Marks of versitygw's: colours, and what is worse than information.
var (
	printColours = strings.NewReplacer("\033[31m", "", "\033[32m", "", "\033[33m", "", "\033[34m", "", "\033[0;35m", "", "\033[0m", "")
	printErrors  = []string{"[INTERNAL ERROR]: ", "[PANIC]: "}
)

// capturePrints sends to the log, line by line, what libraries print on standard
// output and standard error, until restore is called. The Go runtime's own last
// words still go to standard error.
func capturePrints(to *slog.Logger) (restore func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe for what libraries print: %w", err)
	}
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = w, w
	log.SetOutput(w)
	fiberlog.SetOutput(w)
	done := make(chan struct{})
	go func() {
		defer close(done)
		logLines(to, r)
		r.Close()
	}()
	return func() {
		os.Stdout, os.Stderr = stdout, stderr
		log.SetOutput(stderr)
		fiberlog.SetOutput(stderr)
		w.Close()
		<-done
	}, nil
}

func logLines(to *slog.Logger, r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSpace(printColours.Replace(line)); line != "" {
			logLine(to, line)
		}
		if err != nil {
			return
		}
	}
}

func logLine(to *slog.Logger, line string) {
	for _, mark := range printErrors {
		if text, ok := strings.CutPrefix(line, mark); ok {
			to.Error("versitygw", "says", text)
			return
		}
	}
	to.Info("a library", "says", line)
}
