package terminal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

const (
	// keepLines is how many lines the history keeps.
	keepLines = 1000
	// keepBytes bounds its file; a longer one is begun anew.
	keepBytes = 4 << 20
	// keepLine bounds one line: a pasted file is not worth remembering.
	keepLine = 8 << 10
)

// History is the lines that were entered, oldest first, kept in a file that only its owner can read. It is safe for
// concurrent use.
type History struct {
	path string // "" for one that is not kept

	mu    sync.Mutex
	lines []string
}

// OpenHistory reads the history from a file, which need not exist. One that cannot be read is empty and not kept.
func OpenHistory(path string) *History {
	h := &History{path: path}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return h
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() > keepBytes {
		h.path = ""
		return h
	}
	data, err := os.ReadFile(path)
	if err != nil {
		h.path = ""
		return h
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if line != "" {
			h.lines = append(h.lines, unescape.Replace(line))
		}
	}
	if n := len(h.lines) - keepLines; n > 0 {
		h.lines = h.lines[n:]
		h.rewrite()
	}
	return h
}

// A line of the file is a line that was entered, with its newlines escaped.
var (
	escape   = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)
	unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")
)

// Add appends a line, unless it is empty or the same as the last one. That the file cannot be written is not worth an
// interruption: the history then lasts as long as the process.
func (h *History) Add(line string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if strings.TrimSpace(line) == "" || len(line) > keepLine || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
	if h.path == "" {
		return
	}
	if os.MkdirAll(filepath.Dir(h.path), 0o700) != nil {
		return
	}
	f, err := os.OpenFile(h.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = f.WriteString(escape.Replace(line) + "\n")
	_ = f.Close()
}

// all gives the lines, oldest first.
func (h *History) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines)
}

func (h *History) rewrite() {
	var b strings.Builder
	for _, line := range h.lines {
		b.WriteString(escape.Replace(line) + "\n")
	}
	_ = os.WriteFile(h.path, []byte(b.String()), 0o600)
}
