package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
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
	"rc/rctest":           {"rc/rctest/sigv4", "verbs"},
	"rc/rctest/sigv4":     {},
	"rc/rctest/client":    {"rc/rctest/sigv4", "verbs"},
	"store":               {"rc", "verbs", "token"},
	"cache":               {"store", "verbs"},
	"spool":               {},
	"fs":                  {"cache", "spool", "store", "verbs"},
	"gateway":             {"rc", "verbs", "token"},
	"internal/apps":       {},
	"internal/arch":       {},
	"internal/version":    {},
	"internal/faultproxy": {},
	"internal/pathflags":  {"verbs", "verbs/provider"},
	"internal/stack":      {"cache", "store", "rc", "token", "verbs", "verbs/provider"},
	"internal/testdevice": {"verbs", "verbs/shm", "verbs/provider"},
	"internal/doctor":     {"internal/stack", "internal/version", "cache", "store", "token", "verbs", "verbs/provider"},
	"internal/bench":      {"internal/stack", "internal/version", "cache", "store", "verbs", "verbs/provider"},
	"internal/testenv":    {"..."},
	"cmd/s3rdmafs":        {"fs", "cache", "spool", "store", "rc", "verbs", "verbs/provider", "internal/stack", "internal/version", "internal/pathflags", "internal/doctor", "internal/bench"},
	"cmd/s3rdmagw":        {"gateway", "rc", "verbs", "verbs/provider", "verbs/shm", "internal/version", "internal/pathflags"},
}

type pkg struct {
	name    string // path below the module
	doc     bool
	imports []string // by files that ship
}

// packages parses the module's own files, so that the test's cache knows of
// each of them.
func packages(t *testing.T) map[string]*pkg {
	t.Helper()
	const root = "../.."
	pkgs := map[string]*pkg{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		p := pkgs[rel]
		if p == nil {
			p = &pkg{name: rel}
			pkgs[rel] = p
		}
		p.add(file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 10 {
		t.Fatalf("only %d packages found", len(pkgs))
	}
	return pkgs
}

func (p *pkg) add(file *ast.File) {
	p.doc = p.doc || strings.TrimSpace(file.Doc.Text()) != ""
	for _, spec := range file.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err == nil {
			p.imports = append(p.imports, path)
		}
	}
}

func TestArrowsPointDown(t *testing.T) {
	for name, p := range packages(t) {
		may, known := allowed[name]
		if !known {
			t.Errorf("package %s has no entry in the table of arrows", name)
			continue
		}
		for _, imp := range p.imports {
			target, ours := strings.CutPrefix(imp, module+"/")
			if !ours || slices.Contains(may, "...") || slices.Contains(may, target) {
				continue
			}
			t.Errorf("%s imports %s, which no arrow allows", name, target)
		}
	}
}

// The mount must stay small: nothing of the S3 server comes along with it.
func TestMountCarriesNoServer(t *testing.T) {
	pkgs := packages(t)
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, imp := range pkgs[name].imports {
			if target, ours := strings.CutPrefix(imp, module+"/"); ours {
				visit(target)
			}
			for _, server := range []string{"github.com/versity/", "github.com/gofiber/", "github.com/valyala/fasthttp", module + "/gateway"} {
				if strings.HasPrefix(imp, server) {
					t.Errorf("cmd/s3rdmafs carries %s, by way of %s", imp, name)
				}
			}
		}
	}
	visit("cmd/s3rdmafs")
	if !seen["fs"] || !seen["rc"] {
		t.Errorf("the mount was not followed down to fs and rc: %v", seen)
	}
}

func TestEachPackageIsDocumented(t *testing.T) {
	for name, p := range packages(t) {
		if !p.doc {
			t.Errorf("%s has no package comment", name)
		}
	}
}
