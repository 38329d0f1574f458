package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"s3rdmafs/verbs"
)

// Name is the name of every software device.
const Name = "shm"

const (
	maxQP      = 16384
	maxQPWR    = 16384
	maxSGE     = 16
	maxCQ      = 16384
	maxCQE     = 1 << 20
	maxMR      = 1 << 18
	maxPD      = 1024
	maxMRSize  = 1 << 44
	maxMsgSize = 1 << 30
	activeMTU  = verbs.MTU4096
	mask24     = 1<<24 - 1

	// maxPeers bounds the devices that may have a connection to this one.
	maxPeers = 256
	// maxPeerMems bounds the mappings kept per connection; the least recently
	// used is given up and asked for again.
	maxPeerMems = 128
)

// gidPrefix is the unique-local prefix that marks GIDs of software devices.
var gidPrefix = [4]byte{0xfd, 0x73, 0x68, 0x6d}

// IsGID reports whether g is the GID of a software device.
func IsGID(g verbs.GID) bool { return [4]byte(g[:4]) == gidPrefix }

// Options of a software device.
type Options struct {
	// Faults makes the device misbehave, for tests; nil: no faults.
	Faults *Faults
	// Logger gets what goes wrong with peers; nil: slog.Default().
	Logger *slog.Logger
}

// Device is a software device. It has one port, with one GID.
type Device struct {
	gid    verbs.GID
	faults *Faults
	log    *slog.Logger
	epochs *epochPage
	ln     *net.UnixListener
	events chan verbs.Event
	down   atomic.Bool    // the port's link is
	wg     sync.WaitGroup // every goroutine of the device
	// starve is how long a peer may leave a request unread before that counts as
	// a loss, too.
	starve time.Duration

	mu       sync.Mutex
	closed   bool
	pds      map[*pd]struct{}
	cqs      map[*cq]struct{}
	channels map[*compChannel]struct{}
	out      map[verbs.GID]*outConn
	in       map[*inConn]struct{}
	exports  map[*verbs.Memory]*exported
	nextMem  uint64
	nextQPN  uint32
	slots    []uint32 // free slots of the epoch page, oldest first

	keyMu sync.RWMutex // guards the tables of the data path
	qps   map[uint32]*qp
	lkeys keyTable
	rkeys keyTable
}

// keyTable hands out memory keys of a 24-bit index and an 8-bit generation, so
// that a key is not given out again for 2^32 registrations.
type keyTable struct {
	next uint32
	mrs  map[uint32]*mr
}

func (t *keyTable) add(m *mr) uint32 {
	for {
		t.next++
		index, generation := t.next&mask24, t.next>>24
		key := index<<8 | generation
		if _, used := t.mrs[key]; !used && key != 0 {
			t.mrs[key] = m
			return key
		}
	}
}

// Open makes a new software device. Each call gives a device of its own, with a
// GID of its own.
func Open(o Options) (verbs.Device, error) {
	d := &Device{
		faults:   o.Faults,
		log:      o.Logger,
		starve:   5 * time.Second,
		events:   make(chan verbs.Event, 64),
		pds:      map[*pd]struct{}{},
		cqs:      map[*cq]struct{}{},
		channels: map[*compChannel]struct{}{},
		out:      map[verbs.GID]*outConn{},
		in:       map[*inConn]struct{}{},
		exports:  map[*verbs.Memory]*exported{},
		qps:      map[uint32]*qp{},
		slots:    make([]uint32, maxQP),
	}
	if d.log == nil {
		d.log = slog.Default()
	}
	var seed [16]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	d.gid = verbs.GID(seed)
	copy(d.gid[:], gidPrefix[:])
	// Numbers of two devices rarely agree by accident.
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	d.nextQPN = uint32(seed[0])<<16 | uint32(seed[1])<<8 | uint32(seed[2])
	d.lkeys = keyTable{next: uint32(seed[3])<<16 | uint32(seed[4])<<8, mrs: map[uint32]*mr{}}
	d.rkeys = keyTable{next: uint32(seed[5])<<16 | uint32(seed[6])<<8 | 0x80, mrs: map[uint32]*mr{}}
	for i := range d.slots {
		d.slots[i] = uint32(i)
	}
	var err error
	if d.epochs, err = newEpochPage(); err != nil {
		return nil, err
	}
	d.ln, err = net.ListenUnix("unixpacket", socketAddr(os.Geteuid(), d.gid))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open software device: %w", err), d.epochs.close())
	}
	d.wg.Go(d.accept)
	return d, nil
}

func (d *Device) Name() string     { return Name }
func (d *Device) Provider() string { return "shm" }

func (d *Device) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		FirmwareVersion: "1",
		NumPorts:        1,
		MaxQP:           maxQP,
		MaxQPWR:         maxQPWR,
		MaxSGE:          maxSGE,
		MaxCQ:           maxCQ,
		MaxCQE:          maxCQE,
		MaxMR:           maxMR,
		MaxPD:           maxPD,
		MaxMRSize:       maxMRSize,
	}
}

func (d *Device) Port(n uint8) (verbs.PortAttr, error) {
	if n != 1 {
		return verbs.PortAttr{}, fmt.Errorf("%w: port %d", verbs.ErrInvalid, n)
	}
	state := verbs.PortActive
	if d.down.Load() {
		state = verbs.PortDown
	}
	return verbs.PortAttr{
		State:     state,
		ActiveMTU: activeMTU,
		MaxMsgSz:  maxMsgSize,
		LinkLayer: verbs.LinkEthernet,
		GIDTblLen: 1,
	}, nil
}

func (d *Device) GIDs(n uint8) ([]verbs.GIDEntry, error) {
	if n != 1 {
		return nil, fmt.Errorf("%w: port %d", verbs.ErrInvalid, n)
	}
	return []verbs.GIDEntry{{Index: 0, GID: d.gid, Type: verbs.GIDSoftware}}, nil
}

func (d *Device) Events() <-chan verbs.Event { return d.events }

// emit is called by goroutines of the device and by methods of its objects,
// all of which are gone when the channel is closed.
func (d *Device) emit(e verbs.Event) {
	select {
	case d.events <- e:
	default:
	}
}

func (d *Device) AllocPD() (verbs.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, verbs.ErrClosed
	case len(d.pds) == maxPD:
		return nil, fmt.Errorf("%w: %d PDs", verbs.ErrNoResource, maxPD)
	}
	p := &pd{dev: d}
	d.pds[p] = struct{}{}
	return p, nil
}

func (d *Device) CreateCompChannel() (verbs.CompChannel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, verbs.ErrClosed
	}
	c := &compChannel{dev: d, wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.channels[c] = struct{}{}
	return c, nil
}

func (d *Device) CreateCQ(depth int, ch verbs.CompChannel) (verbs.CQ, error) {
	if depth < 1 || depth > maxCQE {
		return nil, fmt.Errorf("%w: CQ of %d entries", verbs.ErrInvalid, depth)
	}
	var own *compChannel
	if ch != nil {
		var ok bool
		if own, ok = ch.(*compChannel); !ok || own.dev != d {
			return nil, fmt.Errorf("%w: completion channel of another device", verbs.ErrInvalid)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, verbs.ErrClosed
	case len(d.cqs) == maxCQ:
		return nil, fmt.Errorf("%w: %d CQs", verbs.ErrNoResource, maxCQ)
	}
	if own != nil {
		if _, ok := d.channels[own]; !ok {
			return nil, verbs.ErrClosed
		}
		own.refs++
	}
	c := &cq{dev: d, ch: own, ring: make([]cqe, depth)}
	d.cqs[c] = struct{}{}
	return c, nil
}

func (d *Device) Close() error {
	d.mu.Lock()
	if n := len(d.pds) + len(d.cqs) + len(d.channels); n > 0 {
		d.mu.Unlock()
		return fmt.Errorf("%w: device with %d objects", verbs.ErrBusy, n)
	}
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	for _, c := range d.out {
		c.sock.Close()
	}
	for c := range d.in {
		c.sock.Close()
	}
	d.mu.Unlock()
	err := d.ln.Close()
	d.wg.Wait()
	close(d.events)
	return errors.Join(err, d.epochs.close())
}

// spawn runs f as a goroutine that Close waits for. It must be called by or
// for an object that keeps the device open.
func (d *Device) spawn(f func()) { d.wg.Go(f) }

func (d *Device) addMR(m *mr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.pds[m.pd]; !ok {
		return verbs.ErrClosed
	}
	d.keyMu.Lock()
	full := len(d.rkeys.mrs) == maxMR
	d.keyMu.Unlock()
	if full {
		return fmt.Errorf("%w: %d MRs", verbs.ErrNoResource, maxMR)
	}
	e := d.exports[m.mem]
	if e == nil {
		file, err := reopenReadOnly(m.mem.File())
		if err != nil {
			return fmt.Errorf("reopen memory: %w", err)
		}
		d.nextMem++
		e = &exported{id: d.nextMem, file: file}
		d.exports[m.mem] = e
	}
	e.refs++
	m.exp = e
	m.pd.refs++
	d.keyMu.Lock()
	m.lkey = d.lkeys.add(m)
	m.rkey = d.rkeys.add(m)
	d.keyMu.Unlock()
	return nil
}

// removeMR takes the keys out of the tables; false when they were out already.
func (d *Device) removeMR(m *mr) bool {
	d.keyMu.Lock()
	defer d.keyMu.Unlock()
	if d.rkeys.mrs[m.rkey] != m {
		return false
	}
	delete(d.lkeys.mrs, m.lkey)
	delete(d.rkeys.mrs, m.rkey)
	return true
}

// dropExport ends the share of a closed MR in its memory. With the last one the
// peers are told, so that they do not keep the pages alive.
func (d *Device) dropExport(m *mr) {
	d.mu.Lock()
	e := m.exp
	e.refs--
	last := e.refs == 0
	var conns []*outConn
	if last {
		delete(d.exports, m.mem)
		e.closed.Store(true)
		for _, c := range d.out {
			conns = append(conns, c)
		}
		// A peer that does not read must not hold up the deregistration.
		d.spawn(func() {
			for _, c := range conns {
				c.forget(e.id)
			}
			e.file.Close()
		})
	}
	m.pd.refs--
	d.mu.Unlock()
}

func (d *Device) mrByLKey(key uint32) *mr {
	d.keyMu.RLock()
	defer d.keyMu.RUnlock()
	return d.lkeys.mrs[key]
}

func (d *Device) mrByRKey(key uint32) *mr {
	d.keyMu.RLock()
	defer d.keyMu.RUnlock()
	return d.rkeys.mrs[key]
}

func (d *Device) qpByNum(n uint32) *qp {
	d.keyMu.RLock()
	defer d.keyMu.RUnlock()
	return d.qps[n]
}

func (d *Device) allQPs() []*qp {
	d.keyMu.RLock()
	defer d.keyMu.RUnlock()
	all := make([]*qp, 0, len(d.qps))
	for _, q := range d.qps {
		all = append(all, q)
	}
	return all
}

// overrun ends all QPs of a broken CQ, as the device would.
func (d *Device) overrun(c *cq) {
	d.emit(verbs.Event{Type: verbs.EventCQError})
	for _, q := range d.allQPs() {
		if q.sendCQ == c || q.recvCQ == c {
			q.fail()
		}
	}
}
