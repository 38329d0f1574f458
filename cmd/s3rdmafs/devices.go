package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

type devicesCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// device, port and gid are the JSON form of `devices`.
type device struct {
	Name        string   `json:"name"`
	Provider    string   `json:"provider"`
	Firmware    string   `json:"firmware,omitempty"`
	NUMANode    int      `json:"numa_node"` // -1: unknown
	NetDevs     []string `json:"netdevs,omitempty"`
	CharDevices []string `json:"char_devices,omitempty"`
	MaxQP       int      `json:"max_qp"`
	MaxMR       int      `json:"max_mr"`
	Problem     string   `json:"problem,omitempty"`
	Ports       []port   `json:"ports"`
}

type port struct {
	Port      uint8  `json:"port"`
	State     string `json:"state"`
	LinkLayer string `json:"link_layer"`
	MTU       int    `json:"active_mtu"`
	LID       uint16 `json:"lid"`
	GIDs      []gid  `json:"gids"`
}

type gid struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	NetDev string `json:"netdev,omitempty"`
}

func (c *devicesCmd) Run() error {
	infos, listErr := provider.List()
	devices := make([]device, 0, len(infos))
	for _, i := range infos {
		devices = append(devices, describe(i))
	}
	if c.JSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(devices)
	}
	for _, d := range devices {
		d.print(os.Stdout)
	}
	if listErr != nil {
		fmt.Printf("\nReal devices: %v\n", listErr)
	} else if len(devices) == 1 {
		fmt.Print("\nNo real RDMA device. The software device serves endpoints on this host; others are reached over HTTP.\n")
	}
	return nil
}

func describe(i provider.Info) device {
	d := device{
		Name: i.Name, Provider: i.Provider, Firmware: i.Attr.FirmwareVersion, NUMANode: i.NUMANode,
		NetDevs: i.NetDevs, CharDevices: i.CharDevices, MaxQP: i.Attr.MaxQP, MaxMR: i.Attr.MaxMR,
	}
	if i.Err != nil {
		d.Problem = i.Err.Error()
	}
	for _, p := range i.Ports {
		out := port{
			Port: p.Port, State: p.Attr.State.String(), LinkLayer: p.Attr.LinkLayer.String(), LID: p.Attr.LID,
		}
		if p.Attr.ActiveMTU >= verbs.MTU256 {
			out.MTU = p.Attr.ActiveMTU.Bytes()
		}
		for _, g := range p.GIDs {
			out.GIDs = append(out.GIDs, gid{g.Index, g.GID.String(), g.Type.String(), g.NetDev})
		}
		d.Ports = append(d.Ports, out)
	}
	return d
}

func (d device) print(w io.Writer) {
	fmt.Fprintf(w, "%s (%s)", d.Name, d.Provider)
	if d.NUMANode >= 0 {
		fmt.Fprintf(w, ", NUMA node %d", d.NUMANode)
	}
	if len(d.NetDevs) > 0 {
		fmt.Fprintf(w, ", netdev %s", strings.Join(d.NetDevs, " "))
	}
	fmt.Fprintln(w)
	if d.Problem != "" {
		fmt.Fprintf(w, "  not usable: %s\n", d.Problem)
	}
	for _, p := range d.Ports {
		fmt.Fprintf(w, "  port %d: %s, %s, MTU %d", p.Port, p.State, p.LinkLayer, p.MTU)
		if p.LID != 0 {
			fmt.Fprintf(w, ", LID %d", p.LID)
		}
		fmt.Fprintln(w)
		for _, g := range p.GIDs {
			fmt.Fprintf(w, "    GID %d: %s  %s", g.Index, g.GID, g.Type)
			if g.NetDev != "" {
				fmt.Fprintf(w, "  %s", g.NetDev)
			}
			fmt.Fprintln(w)
		}
	}
}
