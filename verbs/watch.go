package verbs

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// watchPoll is how often a Watch looks at the port without an event: a device
// drops events when too many come at once.
const watchPoll = 10 * time.Second

// WatchOptions describe a Watch. All functions are called by one goroutine, in
// the order of the events; each may be nil.
type WatchOptions struct {
	Port uint8 // default 1
	// Pool is told of QPs and CQs that failed.
	Pool *Pool
	// Down is called when the device can carry no transfers on the port any more,
	// with the reason in words, and again when the reason changes. Up is called when
	// it can again.
	Down func(reason string)
	Up   func()
	// GIDChange is called when the GID table of the port changed, and when the
	// port is up again. While its last call was an error, the port counts as down.
	GIDChange func() error
	Logger    *slog.Logger
}

// Watch acts upon the asynchronous events of a device, whose only reader it must be.
type Watch struct {
	dev  Device
	o    WatchOptions
	log  *slog.Logger
	stop chan struct{}
	once sync.Once
	done chan struct{}

	// Of the goroutine.
	fatal, port, gid string // why not, "" when nothing is wrong
	reason           string // that was told last
}

// NewWatch starts to watch dev. Close it before the device and the pool.
func NewWatch(dev Device, o WatchOptions) *Watch {
	if o.Port == 0 {
		o.Port = 1
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := &Watch{
		dev: dev, o: o,
		log:  o.Logger.With("device", dev.Name(), "port", o.Port),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	return w
}

// Close ends the watch; no function of the options runs afterwards.
func (w *Watch) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}

func (w *Watch) run() {
	defer close(w.done)
	look := time.NewTicker(watchPoll)
	defer look.Stop()
	// What happened before there was a reader.
	w.look()
	w.tell()
	events := w.dev.Events()
	for {
		select {
		case <-w.stop:
			return
		case <-look.C:
			w.look()
		case e, ok := <-events:
			if !ok {
				events = nil
				w.fatal = "device is gone"
				break
			}
			w.handle(e)
		}
		w.tell()
	}
}

// look asks for the state of the port.
func (w *Watch) look() {
	was := w.port
	switch attr, err := w.dev.Port(w.o.Port); {
	case err != nil:
		w.port = "port cannot be queried: " + err.Error()
	case attr.State != PortActive:
		w.port = "port down"
	default:
		w.port = ""
		if was != "" || w.gid != "" {
			w.gidChange()
		}
	}
}

func (w *Watch) handle(e Event) {
	switch e.Type {
	case EventPortError, EventPortActive, EventGIDChange:
		if e.Port != w.o.Port {
			return
		}
	}
	switch e.Type {
	case EventPortError:
		w.port = "port down"
	case EventPortActive:
		w.port = ""
		w.gidChange()
	case EventGIDChange:
		w.gidChange()
	case EventDeviceFatal:
		w.log.Error("RDMA device failed")
		w.fatal = "device failed"
	case EventQPFatal:
		// Others may have QPs on the device, too.
		if w.o.Pool != nil && w.o.Pool.FailQP(e.QPN) {
			w.log.Warn("queue pair failed and is given up", "qpn", e.QPN)
		}
	case EventCQError:
		if w.o.Pool != nil {
			w.o.Pool.checkCQs()
		}
	}
}

func (w *Watch) gidChange() {
	w.gid = ""
	if w.o.GIDChange == nil {
		return
	}
	if err := w.o.GIDChange(); err != nil {
		w.gid = fmt.Sprintf("no usable GID: %v", err)
	}
}

// tell passes a change on.
func (w *Watch) tell() {
	reason := w.fatal
	if reason == "" {
		reason = w.port
	}
	if reason == "" {
		reason = w.gid
	}
	if reason == w.reason {
		return
	}
	w.reason = reason
	if reason == "" {
		w.log.Info("RDMA port back in use")
		if w.o.Up != nil {
			w.o.Up()
		}
		return
	}
	w.log.Warn("RDMA port out of use: " + reason)
	if w.o.Down != nil {
		w.o.Down(reason)
	}
}
