package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "s3rdmafs"

// allowed lists, for each package, which packages of the module it may import
// in code that ships. A name ending in /... stands for a whole subtree.
var allowed = map[string][]string{
	"token":               {},
	"verbs":               {},
	"verbs/shm":           {"verbs"},
	"verbs/ibv":           {"verbs"},
	"verbs/provider":      {"verbs", "verbs/shm", "verbs/ibv"},
	"verbs/verbstest":     {"verbs"},
	"rc":                  {"verbs", "token"},
	"rc/rctest":           {"rc", "verbs", "token"},
	"store":               {"rc", "verbs", "token"},
	"cache":               {"store", "verbs"},
	"fs":                  {"cache", "store", "verbs"},
	"gateway":             {"rc", "verbs", "token"},
	"internal/arch":       {},
	"internal/version":    {},
	"internal/faultproxy": {},
	"internal/stack":      {"cache", "store", "rc", "token", "verbs", "verbs/provider"},
	"internal/testenv":    {"..."},
	"cmd/s3rdmafs":        {"fs", "cache", "store", "rc", "verbs", "verbs/provider", "internal/stack", "internal/version"},
	"cmd/s3rdmagw":        {"gateway", "rc", "verbs", "verbs/provider", "verbs/shm", "internal/version"},
}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Doc,Imports,Deps,GoFiles", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestArrowsPointDown(t *testing.T) {
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		may, known := allowed[name]
		if !known {
			t.Errorf("package %s has no entry in the table of arrows", name)
			continue
		}
		for _, imp := range p.Imports {
			target, ours := strings.CutPrefix(imp, module+"/")
			if !ours || slices.Contains(may, "...") || slices.Contains(may, target) || strings.HasPrefix(target, name+"/internal/") {
				continue
			}
			t.Errorf("%s imports %s, which no arrow allows", name, target)
		}
	}
}

// The mount must stay small: nothing of the S3 server comes along with it.
func TestMountCarriesNoServer(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != module+"/cmd/s3rdmafs" {
			continue
		}
		for _, dep := range p.Deps {
			for _, server := range []string{"github.com/versity/", "github.com/gofiber/", "github.com/valyala/fasthttp", module + "/gateway"} {
				if strings.HasPrefix(dep, server) {
					t.Errorf("cmd/s3rdmafs depends on %s", dep)
				}
			}
		}
		return
	}
	t.Fatal("cmd/s3rdmafs not found")
}

func TestEachPackageIsDocumented(t *testing.T) {
	for _, p := range list(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
