package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Result is one run with what it was measured on.
type Result struct {
	Version  string   `json:"version"`
	Go       string   `json:"go"`
	Kernel   string   `json:"kernel"`
	Arch     string   `json:"arch"`
	CPUs     int      `json:"cpus"`
	Endpoint string   `json:"endpoint"`
	Bucket   string   `json:"bucket"`
	Mode     string   `json:"rdma"`
	Device   *Device  `json:"device,omitempty"`
	Seconds  float64  `json:"seconds_per_point"`
	Notes    []string `json:"notes,omitempty"`
	Points   []Point  `json:"points"`
}

// Device is the RDMA device that was used.
type Device struct {
	Name     string `json:"name"`
	Provider string `json:"provider"`
	Port     uint8  `json:"port"`
	GIDIndex int    `json:"gid_index"`
	GIDType  string `json:"gid_type"`
	NetDev   string `json:"netdev,omitempty"`
	MTU      int    `json:"path_mtu"`
	Reason   string `json:"reason"`
}

// Point is one combination of operation, size and concurrency.
type Point struct {
	Op          Op            `json:"op"`
	Size        int64         `json:"size"` // bytes
	Concurrency int           `json:"concurrency"`
	Lanes       []Measurement `json:"lanes"`
	// Ratio is the throughput over RDMA by that over HTTP; nil unless both were
	// measured and all bytes of the first went by RDMA.
	Ratio *float64 `json:"rdma_to_http,omitempty"`
}

// Measurement is what one lane did at a point. Megabytes are 10^6 bytes.
type Measurement struct {
	Lane       string  `json:"lane"` // rdma, http or auto: what was asked for
	Via        string  `json:"via"`  // rdma, http or mixed: what carried the bytes
	Transfers  uint64  `json:"transfers"`
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	MBps       float64 `json:"mb_per_s"`
	IOPS       float64 `json:"iops"`
	Latency    Latency `json:"latency_ms"`
	CPUSeconds float64 `json:"cpu_s"` // of this process
	CPUPerGB   float64 `json:"cpu_s_per_gb"`
}

// Latency of single transfers in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Print writes the result as a table.
func (r *Result) Print(w io.Writer) error {
	fmt.Fprintf(w, "s3rdmafs %s, %s, Linux %s %s, %d CPUs\n", r.Version, r.Go, r.Kernel, r.Arch, r.CPUs)
	fmt.Fprintf(w, "endpoint %s, bucket %s, --rdma %s, %g s for each line\n", r.Endpoint, r.Bucket, r.Mode, r.Seconds)
	if d := r.Device; d != nil {
		fmt.Fprintf(w, "device %s (%s) port %d, GID %d %s, path MTU %d: %s\n", d.Name, d.Provider, d.Port, d.GIDIndex, d.GIDType, d.MTU, d.Reason)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "op\tsize\tconc\tlane\tvia\tMB/s\tIOPS\tp50 ms\tp90 ms\tp99 ms\tmax ms\tCPU s/GB\tRDMA/HTTP\t")
	for _, p := range r.Points {
		for _, m := range p.Lanes {
			ratio := ""
			if p.Ratio != nil && m.Lane == laneRDMA {
				ratio = fmt.Sprintf("%.2f", *p.Ratio)
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%.1f\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t\n",
				p.Op, humanize.IBytes(uint64(p.Size)), p.Concurrency, m.Lane, m.Via, m.MBps, m.IOPS,
				m.Latency.P50, m.Latency.P90, m.Latency.P99, m.Latency.Max, m.CPUPerGB, ratio)
		}
	}
	return t.Flush()
}

// tally is what was counted of a lane at a point.
type tally struct {
	h       histogram
	bytes   int64
	elapsed time.Duration
	cpu     time.Duration
	rdma    int64 // bytes, as the store counts them
	http    int64
}

func (t *tally) measurement(lane string) Measurement {
	m := Measurement{
		Lane: lane, Via: "mixed", Transfers: t.h.n, Bytes: t.bytes, Seconds: t.elapsed.Seconds(), CPUSeconds: t.cpu.Seconds(),
		Latency: Latency{millis(t.h.quantile(0.5)), millis(t.h.quantile(0.9)), millis(t.h.quantile(0.99)), millis(t.h.max)},
	}
	switch {
	case t.http == 0:
		m.Via = laneRDMA
	case t.rdma == 0:
		m.Via = laneHTTP
	}
	if m.Seconds > 0 {
		m.MBps = float64(t.bytes) / 1e6 / m.Seconds
		m.IOPS = float64(t.h.n) / m.Seconds
	}
	if t.bytes > 0 {
		m.CPUPerGB = m.CPUSeconds / (float64(t.bytes) / 1e9)
	}
	return m
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ratio compares the lanes of a point.
func ratio(lanes []Measurement) *float64 {
	var rdma, http float64
	for _, m := range lanes {
		switch {
		case m.Lane == laneRDMA && m.Via == laneRDMA:
			rdma = m.MBps
		case m.Lane == laneHTTP:
			http = m.MBps
		}
	}
	if rdma == 0 || http == 0 {
		return nil
	}
	q := rdma / http
	return &q
}
