// Package contracts holds what Butler publishes, its messages, services and subjects, against the code and against what
// was published before. It has tests only.
package contracts

import (
	"bytes"
	"context"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write generated files instead of comparing them")

// bufPath builds buf on first use, which takes minutes once for each version and machine.
var bufPath = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("../tools/tool.sh", "buf").Output()
	return strings.TrimSpace(string(out)), err
})

func buf(t *testing.T, args ...string) []byte {
	t.Helper()
	path, err := bufPath()
	require.NoError(t, err, "the pinned buf could not be built")
	return run(t, path, args...)
}

func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s %s\n%s%s", filepath.Base(name), strings.Join(args, " "), &stdout, &stderr)
	return stdout.Bytes()
}

func TestStyleOfTheMessages(t *testing.T) {
	buf(t, "lint")
	buf(t, "format", "--diff", "--exit-code")
}

func TestNothingPublishedIsBroken(t *testing.T) {
	buf(t, "breaking", "--against", "baseline.binpb")
}

func TestGeneratedGoIsFresh(t *testing.T) {
	out := t.TempDir()
	run(t, "../tools/generate-proto.sh", out)
	want, have := goFiles(t, out), goFiles(t, ".")
	require.NotEmpty(t, want)
	for name, content := range want {
		require.Equal(t, content, have[name], "%s is stale: run make generate", name)
	}
	for name := range have {
		require.Contains(t, want, name, "%s belongs to no .proto file: delete it", name)
	}
}

func goFiles(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".pb.go") {
			return err
		}
		data, err := os.ReadFile(filepath.Join(root, path))
		files[path] = string(data)
		return err
	})
	require.NoError(t, err)
	return files
}

// golden compares content with a committed file, or writes it with -update.
func golden(t *testing.T, path, content string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
		return
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err, "run make generate")
	require.Equal(t, string(have), content, "%s is stale: run make generate", path)
}
