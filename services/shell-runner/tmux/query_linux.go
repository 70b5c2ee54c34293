package tmux

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	queryWait = 10 * time.Second // a shell with thousands of aliases on a busy machine
	// What the shell's start file gives at most, in characters.
	maxAnswer = 100_000
)

// queryKey is what the start file binds: nothing else sends it.
var queryKey = []byte("\x1b[7731~")

// ask puts a question to the shell, which answers by a mark; nothing shows on the screen. s.op is held.
func (s *Session) ask(ctx context.Context, kind, word string, wait time.Duration) (string, error) {
	id := newNonce()[:16]
	if err := s.writeFile(fileQuery, id+"\n"+kind+"\n"+word+"\n", 0o640); err != nil {
		return "", err
	}
	ch := make(chan string, 1)
	s.mu.Lock()
	if s.lost != nil {
		defer s.mu.Unlock()
		return "", s.lost
	}
	s.replies[id] = ch
	s.background = false // readline draws its prompt again
	ctl := s.ctl
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.replies, id)
		s.mu.Unlock()
	}()
	if _, err := ctl.do(ctx, typeLines(pane, queryKey)...); err != nil {
		return "", err
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case text := <-ch:
		return text, nil
	case <-t.C:
		return "", integrationLost(s.name)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (s *Session) query(ctx context.Context, kind, word string) (string, error) {
	release, err := s.atPrompt(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	return s.ask(ctx, kind, word, queryWait)
}

// Resolve says what the shell would run for a word, without running or showing anything. Only at the prompt: otherwise
// a BusyError.
func (s *Session) Resolve(ctx context.Context, word string) (Resolution, error) {
	if word == "" || len(word) > 1024 || strings.ContainsAny(word, "\n\x00") {
		return Resolution{}, fault.New(fault.Invalid, "a word has 1 to 1024 bytes and no line break")
	}
	text, err := s.query(ctx, "resolve", word)
	if err != nil {
		return Resolution{}, err
	}
	kind, definition, _ := strings.Cut(text, "\x1e")
	return Resolution{Kind: kind, Definition: definition}, nil
}

// Snapshot gives what in the shell changes the meaning of commands: compare two Digests to notice a change. Only at the
// prompt, as Resolve.
func (s *Session) Snapshot(ctx context.Context) (Snapshot, error) {
	text, err := s.query(ctx, "snapshot", "")
	if err != nil {
		return Snapshot{}, err
	}
	parts := strings.Split(text, "\x1e")
	snap := Snapshot{Aliases: map[string]string{}, Definitions: map[string]string{}, Variables: map[string]string{}, Truncated: len([]rune(text)) >= maxAnswer}
	part := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	parseAliases(part(0), snap.Aliases)
	for line := range strings.Lines(part(1)) { // "declare -f name", "declare -fx name"
		f := strings.Fields(line)
		if len(f) == 3 && !strings.HasPrefix(f[2], "__butler_") {
			snap.Functions = append(snap.Functions, f[2])
		}
	}
	for line := range strings.Lines(part(2)) {
		// readline's own are there only while a question is answered
		if name := strings.TrimSpace(line); name != "" && !strings.HasPrefix(name, "READLINE_") {
			snap.Environment = append(snap.Environment, name)
		}
	}
	for entry := range strings.SplitSeq(part(3), "\x1c") {
		if name, text, ok := strings.Cut(entry, "\x1d"); ok && !strings.HasPrefix(name, "__butler_") {
			snap.Definitions[name] = strings.TrimSpace(text)
		}
	}
	for entry := range strings.SplitSeq(part(4), "\x1c") {
		if name, value, ok := strings.Cut(entry, "\x1d"); ok {
			snap.Variables[name] = value
		}
	}
	slices.Sort(snap.Functions)
	slices.Sort(snap.Environment)
	h := sha256.New()
	names := make([]string, 0, len(snap.Aliases))
	for n := range snap.Aliases {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		h.Write([]byte(n + "\x1d" + snap.Aliases[n] + "\x1c"))
	}
	for i, p := range parts {
		if i != 0 && i != 2 {
			h.Write([]byte("\x1e" + p))
		}
	}
	snap.Digest = hex.EncodeToString(h.Sum(nil))
	return snap, nil
}

// parseAliases reads the output of alias -p: alias name='text', where the text may have several lines.
func parseAliases(text string, into map[string]string) {
	for {
		rest, ok := strings.CutPrefix(text, "alias ")
		if !ok {
			return
		}
		name, rest, ok := strings.Cut(strings.TrimPrefix(rest, "-- "), "=")
		if !ok {
			return
		}
		end, quoted := len(rest), false
		for i := 0; i < len(rest); i++ {
			switch c := rest[i]; {
			case c == '\'':
				quoted = !quoted
			case c == '\\' && !quoted:
				i++
			case c == '\n' && !quoted:
				end = i
			}
			if end < len(rest) {
				break
			}
		}
		if quoted && end == len(rest) {
			return // cut off
		}
		into[name], _ = unquote(rest[:end])
		if end == len(rest) {
			return
		}
		text = rest[end+1:]
	}
}

// Jobs lists the shell's background and stopped jobs. Only at the prompt, as Resolve.
func (s *Session) Jobs(ctx context.Context) ([]Job, error) {
	text, err := s.query(ctx, "jobs", "")
	if err != nil {
		return nil, err
	}
	var jobs []Job
	for line := range strings.Lines(text) { // "[1]+  4242 Running                 sleep 100 &"
		num, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "]")
		n, err := strconv.Atoi(num)
		if !ok || err != nil {
			continue // further processes of a pipeline
		}
		f := strings.Fields(strings.TrimLeft(rest, "+- "))
		if len(f) < 2 {
			continue
		}
		pid, err := strconv.Atoi(f[0])
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(rest, f[1])
		jobs = append(jobs, Job{Number: n, PID: pid, State: f[1], Text: strings.TrimSpace(after)})
	}
	return jobs, nil
}

var errNotOurs = errors.New("the server is another one")
