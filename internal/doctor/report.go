package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Status is the outcome of a check.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
	// Skip: not checked; the fact says why.
	Skip Status = "skip"
)

// Check is one line of a report.
type Check struct {
	Group  string `json:"group"` // machine, network, rdma, server or bucket
	Name   string `json:"name"`
	Status Status `json:"status"`
	Fact   string `json:"fact"`
	// Remedy is set for Warn and Fail.
	Remedy  string   `json:"remedy,omitempty"`
	Details []string `json:"details,omitempty"`
}

// Report is everything that was found out.
type Report struct {
	Version  string  `json:"version"`
	Kernel   string  `json:"kernel"`
	Arch     string  `json:"arch"`
	CPUs     int     `json:"cpus"`
	Endpoint string  `json:"endpoint"`
	Region   string  `json:"region"`
	Bucket   string  `json:"bucket,omitempty"`
	Mode     string  `json:"rdma"`
	Checks   []Check `json:"checks"`
	Failures int     `json:"failures"`
	Warnings int     `json:"warnings"`
	// Verdict says in a sentence how object bytes would move.
	Verdict string `json:"verdict"`
}

// Find returns the first check of that name, nil when there is none.
func (r *Report) Find(name string) *Check {
	for i := range r.Checks {
		if r.Checks[i].Name == name {
			return &r.Checks[i]
		}
	}
	return nil
}

var groupTitles = map[string]string{
	groupMachine: "This machine",
	groupRDMA:    "RDMA",
	groupNetwork: "The way to the endpoint",
	groupServer:  "The server",
	groupBucket:  "The bucket",
}

// Printer writes checks as they come, for people.
type Printer struct {
	w     io.Writer
	group string
}

// NewPrinter writes to w.
func NewPrinter(w io.Writer) *Printer { return &Printer{w: w} }

// indent is where facts begin.
const indent = 23

// Check writes one check, with a title before the first of its group.
func (p *Printer) Check(c Check) {
	if c.Group != p.group {
		p.group = c.Group
		fmt.Fprintf(p.w, "\n%s\n", groupTitles[c.Group])
	}
	fmt.Fprintf(p.w, "  %-4s  %-13s  %s\n", c.Status, c.Name, c.Fact)
	for _, d := range c.Details {
		fmt.Fprintf(p.w, "%*s%s\n", indent+2, "", d)
	}
	if c.Remedy != "" {
		fmt.Fprintf(p.w, "%*s→ %s\n", indent, "", c.Remedy)
	}
}

// End writes what comes after the last check.
func (p *Printer) End(r *Report) {
	fmt.Fprintf(p.w, "\n%s, %s.\n%s\n", count(r.Failures, "failure"), count(r.Warnings, "warning"), r.Verdict)
}

// Head writes what comes before the first check.
func (p *Printer) Head(r *Report) {
	what := []string{"s3rdmafs " + r.Version, "Linux " + r.Kernel, r.Arch, count(r.CPUs, "CPU")}
	fmt.Fprintln(p.w, strings.Join(what, ", "))
	fmt.Fprintf(p.w, "endpoint %s, region %s, --rdma %s\n", r.Endpoint, r.Region, r.Mode)
}

func count(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
