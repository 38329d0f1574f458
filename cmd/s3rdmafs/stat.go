package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"s3rdmafs/fs"
)

type statCmd struct {
	Mountpoint string `arg:"" help:"The directory it is mounted at." type:"path"`
	JSON       bool   `name:"json" help:"Print JSON." xor:"form"`
	Get        string `placeholder:"NAME" help:"Print one counter alone, for scripts: store.read.rdma.bytes." xor:"form"`
}

func (c *statCmd) Run() error {
	stats, err := readStats(c.Mountpoint)
	if errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("the mount at %s is dead: its process has ended (s3rdmafs umount %s clears it)", c.Mountpoint, c.Mountpoint)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		var out bytes.Buffer
		if err := json.Indent(&out, stats.raw, "", "  "); err != nil {
			return err
		}
		fmt.Println(out.String())
		return nil
	}
	rows, err := flatten(stats.raw)
	if err != nil {
		return err
	}
	if c.Get != "" {
		for _, r := range rows {
			if r.name == c.Get {
				fmt.Println(r.value)
				return nil
			}
		}
		return fmt.Errorf("no counter %q; s3rdmafs stat %s lists them", c.Get, c.Mountpoint)
	}
	return printTable(os.Stdout, rows)
}

type mountStats struct {
	raw []byte
	pid int
	end string // see ending
}

// readStats reads the counters that a living mount shows at its root.
func readStats(dir string) (mountStats, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Getxattr(dir, fs.StatsXattr, buf)
	switch {
	case errors.Is(err, unix.ENOTCONN):
		return mountStats{}, err
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return mountStats{}, fmt.Errorf("no s3rdmafs is mounted at %s", dir)
	case err != nil:
		return mountStats{}, fmt.Errorf("%s: %w", dir, err)
	}
	var head struct {
		PID int
		End string
	}
	if err := json.Unmarshal(buf[:n], &head); err != nil {
		return mountStats{}, fmt.Errorf("counters of %s: %w", dir, err)
	}
	return mountStats{raw: buf[:n], pid: head.PID, end: head.End}, nil
}

type row struct{ name, value string }

// flatten turns nested JSON into rows with dotted names, in the order of
// the document.
func flatten(raw []byte) ([]row, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var rows []row
	var walk func(prefix string) error
	walk = func(prefix string) error {
		tok, err := dec.Token()
		if err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'):
			for dec.More() {
				key, err := dec.Token()
				if err != nil {
					return err
				}
				name := key.(string)
				if prefix != "" {
					name = prefix + "." + name
				}
				if err := walk(name); err != nil {
					return err
				}
			}
			_, err = dec.Token()
			return err
		case json.Delim('['):
			for i := 0; dec.More(); i++ {
				if err := walk(fmt.Sprintf("%s.%d", prefix, i)); err != nil {
					return err
				}
			}
			_, err = dec.Token()
			return err
		}
		rows = append(rows, row{prefix, fmt.Sprint(tok)})
		return nil
	}
	if err := walk(""); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return rows, nil
}

func printTable(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	section := ""
	for _, r := range rows {
		head, _, nested := strings.Cut(r.name, ".")
		if !nested {
			head = ""
		}
		if head != section {
			section = head
			fmt.Fprintln(t)
		}
		fmt.Fprintf(t, "%s\t%s%s\n", r.name, r.value, inUnits(r))
	}
	return t.Flush()
}

// inUnits adds a readable form to counters of bytes.
func inUnits(r row) string {
	last := r.name[strings.LastIndexByte(r.name, '.')+1:]
	if !strings.HasSuffix(last, "bytes") && last != "pinned" && last != "budget" {
		return ""
	}
	var n uint64
	if _, err := fmt.Sscan(r.value, &n); err != nil || n < 1024 {
		return ""
	}
	return "\t(" + humanize.IBytes(n) + ")"
}
