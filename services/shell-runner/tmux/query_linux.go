package tmux

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

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
	if err := s.writeQuestion(id + "\n" + kind + "\n" + word + "\n"); err != nil {
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
	case <-s.quit:
		return "", sessionNotFound(s.name, errors.New("it is being closed"))
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// writeQuestion writes over the question before: the shell reads three lines, and only when it is told to.
func (s *Session) writeQuestion(text string) error {
	f, err := os.OpenFile(s.path(fileQuery), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return s.writeFile(fileQuery, text, 0o640)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
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
// prompt, as Resolve. The shell is not asked again while nothing can have changed since it was; what is given is shared
// and not to be changed.
func (s *Session) Snapshot(ctx context.Context) (Snapshot, error) {
	if seen, _ := s.lookedAt(); seen != nil {
		return *seen, nil
	}
	release, err := s.atPrompt(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	defer release()
	seen, stirred := s.lookedAt()
	if seen != nil { // somebody else asked meanwhile
		return *seen, nil
	}
	text, err := s.ask(ctx, "snapshot", "", queryWait)
	if err != nil {
		return Snapshot{}, err
	}
	long := func(answer string) bool { return utf8.RuneCountInString(answer) >= maxAnswer }
	snap := Snapshot{Aliases: map[string]string{}, Definitions: map[string]string{}, Variables: map[string]string{}, Truncated: long(text)}
	parts := slices.Grow(strings.SplitN(text, "\x1e", 4), 4)[:4] // options, variables, names of functions, aliases
	snap.Options = options(parts[0])
	// A value or a trap may have our separators in it, and what comes after them is then not where it is looked for.
	if strings.Count(text, "\x1e") != 3 || !entries(parts[1], snap.Variables) {
		snap.Truncated = true
	}
	for line := range strings.Lines(parts[2]) { // "declare -f name", "declare -fx name"
		f := strings.Fields(line)
		if len(f) == 3 && !ours[f[2]] {
			snap.Functions = append(snap.Functions, f[2])
		}
	}
	slices.Sort(snap.Functions)
	bodies := ""
	if len(snap.Functions) > 0 || snap.Truncated { // most shells have none, and asking takes the shell two more processes
		if bodies, err = s.ask(ctx, "functions", "", queryWait); err != nil {
			return Snapshot{}, err
		}
		if !entries(bodies, snap.Definitions) || long(bodies) {
			snap.Truncated = true
		}
		for name, text := range snap.Definitions {
			if snap.Definitions[name] = strings.TrimSpace(text); ours[name] {
				delete(snap.Definitions, name)
			}
		}
	}
	parseAliases(parts[3], snap.Aliases)
	h := sha256.New()
	for _, line := range slices.Sorted(strings.Lines(parts[3])) { // bash gives aliases in no order
		h.Write([]byte(line))
	}
	for _, part := range append(parts[:3], bodies) {
		h.Write([]byte("\x1e" + part))
	}
	snap.Digest = hex.EncodeToString(h.Sum(nil))
	if still(parts[0]) {
		s.mu.Lock()
		if s.stirred == stirred {
			s.seen = &snap
		}
		s.mu.Unlock()
	}
	return snap, nil
}

// ours are the functions of the start file, which are read-only.
var ours = map[string]bool{"__butler_prompt": true, "__butler_query": true}

// entries reads name\x1dvalue\x1c, over and over; false when a value has a separator in it, so that the values read may not
// be those of their names.
func entries(text string, into map[string]string) (clean bool) {
	clean = true
	for entry := range strings.SplitSeq(text, "\x1c") {
		name, value, ok := strings.Cut(entry, "\x1d")
		if !ok {
			clean = clean && entry == ""
			continue
		}
		if _, twice := into[name]; twice || strings.Contains(value, "\x1d") {
			clean = false
		}
		into[name] = value
	}
	return clean
}

// options reads the two lines that a snapshot begins with: $SHELLOPTS and $BASHOPTS.
func options(settings string) []string {
	lines := slices.Grow(strings.SplitN(settings, "\n", 3), 2)[:2]
	names := strings.FieldsFunc(lines[0]+":"+lines[1], func(r rune) bool { return r == ':' })
	slices.Sort(names)
	return slices.Compact(names)
}

// still says whether a shell stays as it is until a command is run in it, by the part of its answer that tells traps,
// which signals run, and key bindings, which keys run: it has none but ours.
func still(settings string) bool {
	for line := range strings.Lines(settings) {
		if strings.HasPrefix(line, "trap ") || strings.HasPrefix(line, `"`) && !strings.Contains(line, "__butler_query") {
			return false
		}
	}
	return true
}

// lookedAt gives what the shell is known to be, nil when it is to be asked, and how often it was stirred.
func (s *Session) lookedAt() (*Snapshot, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil || s.phase != phasePrompt || s.pressed != s.taken {
		return nil, s.stirred
	}
	return s.seen, s.stirred
}

// stir notes that something may have changed in the shell. s.mu is held.
func (s *Session) stir() {
	s.stirred++
	s.seen = nil
}

// Environment gives the names of the shell's exported variables, sorted. Only at the prompt, as Resolve.
func (s *Session) Environment(ctx context.Context) ([]string, error) {
	text, err := s.query(ctx, "environment", "")
	if err != nil {
		return nil, err
	}
	names := []string{}
	for name := range strings.FieldsSeq(text) {
		if !strings.HasPrefix(name, "READLINE_") { // readline's own are there only while a question is answered
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
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
