// Package guard judges a command line before it reaches a shell: run it, ask a person, or refuse it.
//
// A line is parsed as bash would read it, every command in it is found wherever it stands (substitutions, heredocs,
// functions, traps, the arguments of wrappers such as sudo and xargs), its words are resolved as far as the text alone
// decides them, and each command is looked up in the tables of the folder rules. What the tables do not know is asked
// about: only what is known to be harmless runs by itself.
//
// The package is pure: it starts nothing, reads no file but its own tables, and knows no clock. One Guard may be used by
// many goroutines at once. No text makes Check panic or take long: size, depth, number of steps and of parsed bytes are
// bounded, and what goes beyond a bound is refused.
//
// The guard is a seat belt, not a wall. The wall is the operating-system user that the shell runs as.
package guard

import (
	"fmt"
	"regexp"
	"strings"
)

// Verdict is what the guard would do on its own. The policy of the approval service decides who is asked.
type Verdict string

// The verdicts, from the mildest.
const (
	Run    Verdict = "run"    // reads only, or builds and tests in the project
	Ask    Verdict = "ask"    // a person must agree
	Refuse Verdict = "refuse" // must not be sent to a shell: it does not parse, hides something, or is hard-line
)

// Risk is how much can be lost.
type Risk string

// The risks, from the mildest.
const (
	Low      Risk = "low"      // reads, or builds and tests in the project
	Medium   Risk = "medium"   // bounded or recoverable change; or a program that the guard does not know
	High     Risk = "high"     // loss, outage, weaker security, code that nobody read
	Critical Risk = "critical" // the hard-line set: never to be approved in a chat
)

// level is a Risk that can be compared.
type level int

const (
	low level = iota
	medium
	high
	critical
)

func (l level) risk() Risk { return [...]Risk{Low, Medium, High, Critical}[l] }

// Reason says why a line does not just run. Start and End are byte offsets in Request.Text of what it speaks about; in a
// line within a line (`sh -c '…'`, an alias) they are those of the whole inner line. At equal offsets it is about the line.
type Reason struct {
	Code   string `json:"code"`
	Text   string `json:"text"`
	TextZH string `json:"text_zh"`
	Risk   Risk   `json:"risk"`
	Start  int    `json:"start"`
	End    int    `json:"end"`
}

// Result is the judgement of one line.
type Result struct {
	Verdict Verdict `json:"verdict"`
	Risk    Risk    `json:"risk"`
	// Hardline marks what no chat may approve: removing / or the home, formatting a disk, a fork bomb, killing every
	// process, escaping through the terminal. Its Risk is Critical and its Verdict Refuse.
	Hardline bool `json:"hardline"`
	// Reasons are in the order of the text, at most maxReasons of them, the gravest kept. Empty when Verdict is Run.
	Reasons []Reason `json:"reasons"`
	// Commands are the commands as the guard reads them, in the order it met them: quotes removed, constants put in,
	// "…" for each part that only the shell can know. Wrappers and what they run are separate entries.
	Commands [][]string `json:"commands,omitempty"`
	// Scripts are paths of local files that the line would execute, absolute where the directory is known: digest them
	// when the line is approved and again when it runs.
	Scripts []string `json:"scripts,omitempty"`
	// Visible is the text with invisible and control characters written as escapes, for people to read.
	Visible string `json:"visible"`
}

// Session is what was defined earlier in the shell that will run the line.
type Session struct {
	Aliases   map[string]string // name to text
	Functions map[string]string // name to definition as `declare -f` prints it, or to its body
	Exports   map[string]string // environment variables whose values are known
	// Options are those that are on, as $SHELLOPTS and $BASHOPTS name them (braceexpand, expand_aliases, …). Empty when
	// they are not known: then they are taken to be those of an interactive bash.
	Options []string
}

// Request is a line and where it would run.
type Request struct {
	Text string
	// Dir is the working directory, Home and User belong to the person whose shell it is. Empty ones are unknown: a
	// folder in a home like /home/user is assumed.
	Dir, Home, User string
	Session         Session
	// Foreground is the program that would read the line; empty or the name of a shell for a shell at its prompt.
	// Input of any other program is always asked about.
	Foreground string
}

// Options are the settings of a Guard. The zero value works.
type Options struct {
	// DangerPatterns are regular expressions, or plain text found anywhere; each is tried both ways, on the line and on
	// each command as it was read. A match is asked about. They add to the tables and never take anything away.
	DangerPatterns []string
	// Protected are folders and files of Butler itself, absolute: data, settings, sockets. Any mention of one is
	// asked about as an attempt to get out of the session.
	Protected []string
}

// Bounds of one Check.
const (
	// MaxText is how many bytes a line may have.
	MaxText = 8 << 10

	maxDepth    = 120      // nesting of statements and wrappers
	maxTexts    = 8        // texts within texts
	maxSteps    = 4_000    // commands and words looked at
	maxParsed   = 48 << 10 // bytes parsed in all, inner lines included
	maxWord     = 64 << 10 // bytes that the expansions of one word may give
	maxFields   = 256      // words that one word may expand to
	maxReasons  = 24
	maxCommands = 64
	maxPatterns = 200
	maxPattern  = 500 // bytes
)

// Guard judges lines. Make one with New.
type Guard struct {
	tables    *tables
	patterns  []pattern
	protected []string
}

type pattern struct {
	text string
	re   *regexp.Regexp // nil when the text is no regular expression
}

func (p pattern) in(s string) bool {
	return strings.Contains(s, p.text) || p.re != nil && p.re.MatchString(s)
}

// New makes a guard. It fails when there are more than 200 patterns, or one is empty or longer than 500 bytes.
func New(o Options) (*Guard, error) {
	t, err := loadTables()
	if err != nil {
		return nil, err
	}
	if len(o.DangerPatterns) > maxPatterns {
		return nil, fmt.Errorf("guardrail.danger_patterns has %d entries, use at most %d", len(o.DangerPatterns), maxPatterns)
	}
	g := &Guard{tables: t}
	for i, text := range o.DangerPatterns {
		if strings.TrimSpace(text) == "" || len(text) > maxPattern {
			return nil, fmt.Errorf("guardrail.danger_patterns: entry %d must have 1 to %d bytes", i+1, maxPattern)
		}
		re, err := regexp.Compile(text)
		if err != nil {
			re = nil // plain text then
		}
		g.patterns = append(g.patterns, pattern{text, re})
	}
	for _, path := range o.Protected {
		if path = cleanPath(path); path != "/" && path != "." {
			g.protected = append(g.protected, path)
		}
	}
	return g, nil
}
