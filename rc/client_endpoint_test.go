package rc

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// lines collects the messages of a logger.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

func testEndpoint() (*endpoint, *lines) {
	var l lines
	return newEndpoint(slog.New(slog.NewTextHandler(&l, nil)), verbs.GIDEntry{}), &l
}

func wantUsable(t *testing.T, e *endpoint, want bool) {
	t.Helper()
	if ok, reason := e.usable(); ok != want {
		t.Fatalf("usable = %v (%s), want %v", ok, reason, want)
	}
}

func TestNegativeEntryExpiresAndOneRequestTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, log := testEndpoint()
		wantUsable(t, e, true)
		e.refuse(negativeTime, "no such thing")
		e.refuse(negativeTime, "no such thing")
		wantUsable(t, e, false)
		if n := log.count("RDMA not used: no such thing"); n != 1 {
			t.Errorf("the change is logged %d times", n)
		}
		time.Sleep(negativeTime - time.Nanosecond)
		wantUsable(t, e, false)
		time.Sleep(time.Nanosecond)
		wantUsable(t, e, true)
		ok, trial, _ := e.admit()
		if !ok || !trial {
			t.Fatalf("after expiry: admit = %v, trial %v", ok, trial)
		}
		if ok, _, _ := e.admit(); ok {
			t.Fatal("a second request is let through during the trial")
		}
		wantUsable(t, e, false)
		e.endTrial()
		if ok, trial, _ := e.admit(); !ok || !trial {
			t.Fatal("nobody may try after a trial without outcome")
		}
		e.succeeded()
		for range 2 {
			if ok, trial, _ := e.admit(); !ok || trial {
				t.Fatal("still negative after a good trial")
			}
		}
		e.succeeded()
		if n := log.count("RDMA in use"); n != 1 {
			t.Errorf("use is logged %d times", n)
		}
	})
}

func TestStrikesDoubleThePenalty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := testEndpoint()
		e.strike("x")
		e.strike("x")
		wantUsable(t, e, true)
		e.succeeded()
		e.strike("x")
		e.strike("x")
		wantUsable(t, e, true) // three in a row, not three in all
		e.strike("x")
		for want := strikeTime; ; want = min(2*want, maxStrikeTime) {
			time.Sleep(want - time.Nanosecond)
			wantUsable(t, e, false)
			time.Sleep(time.Nanosecond)
			wantUsable(t, e, true)
			if ok, trial, _ := e.admit(); !ok || !trial {
				t.Fatal("no trial after the penalty")
			}
			e.strike("x") // one failure of a trial is enough
			if want == maxStrikeTime {
				break
			}
		}
		time.Sleep(maxStrikeTime)
		e.admit()
		e.succeeded()
		for range strikes {
			e.strike("x")
		}
		time.Sleep(strikeTime)
		wantUsable(t, e, true) // the penalty starts anew after a success
	})
}

func TestStrangersNeedConfirmation(t *testing.T) {
	e, _ := testEndpoint()
	e.stranger("x")
	e.stranger("x")
	wantUsable(t, e, true)
	e.stranger("x")
	wantUsable(t, e, false)

	e, _ = testEndpoint()
	e.stranger("x")
	e.confirmStranger("x")
	wantUsable(t, e, false)

	e, _ = testEndpoint()
	e.prepared()
	for range 2 * strangerAnswers {
		e.stranger("x")
	}
	e.confirmStranger("x")
	wantUsable(t, e, true) // it spoke the protocol once
}

func TestSizeLimitIsRememberedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := testEndpoint()
		e.limit(OpPut, 16<<20)
		if got := e.maxSize(OpPut, 16<<20); got != 8<<20 {
			t.Errorf("limit after a refusal of 16 MiB = %d", got)
		}
		if got := e.maxSize(OpGet, 16<<20); got != 16<<20 {
			t.Errorf("the other direction is limited to %d", got)
		}
		time.Sleep(limitTime)
		if got := e.maxSize(OpPut, 16<<20); got != 16<<20 {
			t.Errorf("still limited to %d", got)
		}
	})
}

func TestCapabilitiesAreThoseOfTheNewestAnswer(t *testing.T) {
	e, _ := testEndpoint()
	with := func(s string) http.Header {
		h := http.Header{token.HeaderProtocol: {token.Protocol}}
		if s != "" {
			h.Set(token.HeaderCapabilities, s)
		}
		return h
	}
	expect := func(want token.Capabilities, wantKnown bool) {
		t.Helper()
		if caps, known := e.capabilities(); caps != want || known != wantKnown {
			t.Errorf("capabilities %q known %v, want %q %v", caps, known, want, wantKnown)
		}
	}
	expect(0, false)
	e.learn(token.PathPrepare, answer{status: 200, header: with("")})
	expect(0, false)
	e.learn(token.PathReady, answer{status: 502, header: with("mp,keep")})
	expect(token.CapMP|token.CapKeep, true)
	e.learn(token.PathPrepare, answer{status: 200, header: with("")}) // VGW-mp
	expect(token.CapMP|token.CapKeep, true)
	e.learn(token.PathReady, answer{status: 404, header: with("")})
	expect(token.CapMP|token.CapKeep, true)
	e.learn(token.PathReady, answer{status: 200, header: with("")})
	expect(0, true)
}

func TestWriteGraceAdapts(t *testing.T) {
	e, _ := testEndpoint()
	if e.writeGrace() != startGrace {
		t.Fatalf("starts with %v", e.writeGrace())
	}
	const size = 1 << 20
	clean := 10 * time.Millisecond
	e.wrote(size, clean)
	if e.writeGrace() != startGrace*9/10 {
		t.Errorf("after a clean write %v", e.writeGrace())
	}
	for range 200 {
		e.wrote(size, clean)
	}
	if e.writeGrace() > time.Microsecond {
		t.Errorf("after many clean writes %v", e.writeGrace())
	}
	e.wrote(size, clean+ackTimeout+5*time.Millisecond)
	if e.writeGrace() != doubledGrace {
		t.Errorf("after a first lost try %v, want at least %v", e.writeGrace(), doubledGrace)
	}
	e.wrote(size, time.Second)
	if e.writeGrace() != 2*doubledGrace {
		t.Errorf("after a second one %v", e.writeGrace())
	}
	for range 10 {
		e.wrote(size, time.Minute)
	}
	if e.writeGrace() > maxGrace {
		t.Errorf("grace %v exceeds its range", e.writeGrace())
	}
	e.grace = 0
	e.writeRetriesExceeded()
	if e.writeGrace() != maxGrace {
		t.Errorf("after RETRY_EXC %v", e.writeGrace())
	}
}

func TestKeptSessionsAreGivenUpForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := testEndpoint()
		if e.mayKeep() {
			t.Fatal("kept sessions without the word")
		}
		e.capsAre(token.CapKeep)
		if !e.mayKeep() {
			t.Fatal("no kept sessions with the word")
		}
		for _, d := range []time.Duration{noKeepTime, keepPause} {
			e.noKeep(d, "declined")
			time.Sleep(d - time.Nanosecond)
			if e.mayKeep() {
				t.Fatal("tried again at once")
			}
			time.Sleep(time.Nanosecond)
			if !e.mayKeep() {
				t.Fatal("never tried again")
			}
		}
	})
}

// Part uploads are taken on trust, of an endpoint that advertises on FINAL only.
func TestLackingExtensions(t *testing.T) {
	on := func(path string, words token.Capabilities) func(*endpoint) {
		return func(e *endpoint) {
			h := make(http.Header)
			if words != 0 {
				h.Set(token.HeaderCapabilities, words.String())
			}
			e.learn(path, answer{status: http.StatusOK, header: h})
		}
	}
	const all = token.CapMP | token.CapCond
	for _, c := range []struct {
		name             string
		seen             func(*endpoint)
		need, have, want token.Capabilities
	}{
		{"has them", on(token.PathPrepare, all), all, all, 0},
		{"needs none", on(token.PathPrepare, all), 0, 0, 0},
		{"part, on FINAL before", on(token.PathReady, all), token.CapMP, 0, 0},
		{"part, on PREPARE before", on(token.PathPrepare, all), token.CapMP, 0, token.CapMP},
		{"condition, on FINAL before", on(token.PathReady, all), token.CapCond, 0, token.CapCond},
		{"condition, on PREPARE before", on(token.PathPrepare, all), token.CapCond, token.CapMP, token.CapCond},
	} {
		e, _ := testEndpoint()
		c.seen(e)
		if got := e.lacks(c.need, c.have); got != c.want {
			t.Errorf("%s: lacks %q, want %q", c.name, got, c.want)
		}
		if _, known := e.capabilities(); known == (c.want != 0) {
			t.Errorf("%s: known afterwards: %v", c.name, known)
		}
	}
}
