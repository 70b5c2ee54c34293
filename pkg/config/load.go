package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// AnthropicBaseURL is used when only Anthropic's key and a model are set.
const AnthropicBaseURL = "https://api.anthropic.com/v1/"

// MaxFileSize bounds the YAML file, in bytes.
const MaxFileSize = 1 << 20

// Options say where settings come from.
type Options struct {
	// File is the YAML file; empty means the one that BUTLER_CONFIG names, or none.
	File string
	// Environ is the environment as KEY=value; nil means the process's own.
	Environ []string
	// KnownEnv are further BUTLER_ variables that are not settings (those of the command line) and need no warning.
	KnownEnv []string
}

// Origin is where a value came from.
type Origin struct {
	Source Source
	// Detail is the environment variable, file:line, or the setting that a value was derived from; "" for defaults.
	Detail string
}

// Source is a kind of origin.
type Source string

// Sources, each of which wins over the one before.
const (
	FromDefault Source = "default"
	FromFile    Source = "file"
	FromEnv     Source = "env"
	// FromOther is a value that another setting decides.
	FromOther Source = "derived"
)

// String gives the origin as people read it, such as "env BUTLER_HTTP_ADDR".
func (o Origin) String() string {
	if o.Detail == "" {
		return string(o.Source)
	}
	return string(o.Source) + " " + o.Detail
}

// Warning is something that does not stop Butler but was hardly meant so. Its text is a sentence without secrets.
type Warning string

// Problem is one thing that is wrong with the settings.
type Problem struct {
	Where string // environment variable, file:line, or the file
	Text  string // completes the sentence that Where begins; no secrets
}

// InvalidError lists everything that is wrong with the settings.
type InvalidError struct{ Problems []Problem }

// Error gives one line for each problem.
func (e *InvalidError) Error() string {
	var b strings.Builder
	b.WriteString("the settings are not valid:")
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.Where + ": " + p.Text)
	}
	return b.String()
}

type loader struct {
	env      map[string]string
	entries  []entry
	settings Settings
	problems []Problem
	warnings []Warning
	expanded []string // variables that the file names
}

// Load reads the settings. The error is an *InvalidError that names every problem at once. It blocks on reading the
// file only; the environment is read once. The warnings are for the log, whose own settings this yields.
func Load(o Options) (Settings, []Warning, error) {
	l := newLoader(o)
	file := o.File
	if file == "" {
		file = l.env["BUTLER_CONFIG"]
	}
	if file != "" {
		l.readFile(file)
	}
	l.readEnv(o.KnownEnv)
	l.derive()
	if len(l.problems) > 0 {
		return Settings{}, l.warnings, &InvalidError{l.problems}
	}
	return l.settings, l.warnings, nil
}

// Defaults gives the settings of an empty environment with the given data folder.
func Defaults(dataDir string) Settings {
	l := newLoader(Options{Environ: []string{"BUTLER_DATA_DIR=" + dataDir}})
	l.readEnv(nil)
	l.derive()
	return l.settings
}

func newLoader(o Options) *loader {
	environ := o.Environ
	if environ == nil {
		environ = os.Environ()
	}
	l := &loader{env: map[string]string{}, settings: Settings{origins: map[string]Origin{}}}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			l.env[name] = value
		}
	}
	l.entries = table(l.env["HOME"], defaultDataDir(func(name string) string { return l.env[name] }))
	for _, e := range l.entries {
		if err := e.parse(&l.settings, e.Default); err != nil {
			panic(fmt.Sprintf("config: default of %s: %s %v", e.Key, e.Env, err)) // TestEveryDefaultIsValid
		}
	}
	return l
}

func (l *loader) problem(where, format string, args ...any) {
	l.problems = append(l.problems, Problem{Where: where, Text: fmt.Sprintf(format, args...)})
}

func (l *loader) warn(format string, args ...any) {
	l.warnings = append(l.warnings, Warning(fmt.Sprintf(format, args...)))
}

// set takes a value from a source, or notes why not.
func (l *loader) set(e entry, text string, origin Origin, where string) {
	if len(text) > maxText {
		l.problem(where, "%s is longer than %d bytes", e.Key, maxText)
		return
	}
	// Each source is parsed for itself, also when a later one wins: what is wrong in the file is said in any case.
	if err := e.parse(&l.settings, text); err != nil {
		name := e.Key + " "
		if origin.Source == FromEnv {
			name = ""
		}
		l.problem(where, "%s%v", name, err)
		return
	}
	l.settings.origins[e.Key] = origin
}

func (l *loader) readFile(name string) {
	data, err := readBounded(name)
	if err != nil {
		l.problem(name, "%v", err)
		return
	}
	values, problems, notices := readYAML(data, l.entries, func(v string) (string, bool) {
		l.expanded = append(l.expanded, v)
		value, ok := l.env[v]
		return value, ok
	})
	for _, n := range notices {
		l.warn("%s: %s", name, n)
	}
	for _, p := range problems {
		where := name
		if p.line > 0 {
			where = fmt.Sprintf("%s:%d", name, p.line)
		}
		l.problem(where, "%s", p.text)
	}
	for _, v := range values {
		where := fmt.Sprintf("%s:%d", name, v.line)
		l.set(v.entry, v.text, Origin{FromFile, where}, where)
	}
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			return nil, fmt.Errorf("the settings file cannot be opened: %w", pathErr.Err)
		}
		return nil, fmt.Errorf("the settings file cannot be opened: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, errors.New("is a folder; name the settings file itself")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("the settings file cannot be read: %w", err)
	}
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("the settings file is larger than %d KiB", MaxFileSize>>10)
	}
	return data, nil
}

// kubernetesLinks are the variables that Kubernetes makes of services: BUTLER_… when a release is named butler.
var kubernetesLinks = regexp.MustCompile(
	`_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PORT|PROTO|ADDR))?)?$`)

func (l *loader) readEnv(alsoKnown []string) {
	known := slices.Concat([]string{"BUTLER_CONFIG"}, alsoKnown, l.expanded)
	for _, e := range l.entries {
		known = append(known, e.Env)
		// An empty variable counts as not set: compose files and charts pass what their user left out as empty.
		if text := l.env[e.Env]; text != "" {
			l.set(e, text, Origin{FromEnv, e.Env}, e.Env)
		}
	}
	var unknown []string
	for name := range l.env {
		if strings.HasPrefix(name, "BUTLER_") && !slices.Contains(known, name) && !kubernetesLinks.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for i, name := range unknown {
		if i == 20 {
			l.warn("%d more environment variables begin with BUTLER_ and are not settings", len(unknown)-i)
			break
		}
		if near := nearest(name, known); near != "" {
			l.warn("environment variable %s is not a setting and has no effect; did you mean %s?", clip(name), near)
		} else {
			l.warn("environment variable %s is not a setting and has no effect", clip(name))
		}
	}
}

// derive fills in what other settings decide and checks what no setting can check alone.
func (l *loader) derive() {
	s := &l.settings
	l.deriveDataDir()
	for _, t := range []struct {
		key, addrEnv, addr string
		target             *string
	}{
		{"rpc.brain_target", "BUTLER_BRAIN_ADDR", s.RPC.BrainAddr, &s.RPC.BrainTarget},
		{"rpc.registry_target", "BUTLER_REGISTRY_ADDR", s.RPC.RegistryAddr, &s.RPC.RegistryTarget},
		{"rpc.approval_target", "BUTLER_APPROVAL_ADDR", s.RPC.ApprovalAddr, &s.RPC.ApprovalTarget},
		{"rpc.compactor_target", "BUTLER_COMPACTOR_ADDR", s.RPC.CompactorAddr, &s.RPC.CompactorTarget},
		{"rpc.people_target", "BUTLER_PEOPLE_ADDR", s.RPC.PeopleAddr, &s.RPC.PeopleTarget},
	} {
		if *t.target == "" {
			*t.target = reachable(t.addr)
			s.origins[t.key] = Origin{FromOther, "from " + t.addrEnv}
		}
	}
	if n := countSet(s.RPC.TLSCert, s.RPC.TLSKey, s.RPC.TLSCA); n != 0 && n != 3 {
		l.problem("BUTLER_TLS_CERT, BUTLER_TLS_KEY, BUTLER_TLS_CA", "set all three for mutual TLS, or none")
	}
	l.deriveModel()
	l.deriveShell()
}

func (l *loader) deriveShell() {
	s := &l.settings
	if s.Approval.KeyFile == "" && s.DataDir != "" {
		s.Approval.KeyFile = s.Path("approval.key")
		s.origins["approval.key_file"] = Origin{FromOther, "from BUTLER_DATA_DIR"}
	}
	if s.Shell.Host == "" {
		s.Shell.Host = ownHostName()
		s.origins["shell.host"] = Origin{FromOther, "from the machine's host name"}
	}
	if len(s.RPC.ShellTargets) == 0 {
		s.RPC.ShellTargets = []string{s.Shell.Host + "=" + reachable(s.RPC.ShellAddr)}
		s.origins["rpc.shell_targets"] = Origin{FromOther, "from BUTLER_SHELL_HOST and BUTLER_SHELL_ADDR"}
	}
	if !s.Shell.GuardEnabled && len(s.Shell.OSUsers) > 0 {
		l.problem("guardrail.enabled", "the guard can be turned off in single-user mode only; leave BUTLER_SHELL_OS_USERS empty or the guard on")
	}
}

// ownHostName makes a token of the machine's name.
func ownHostName() string {
	name, _ := os.Hostname()
	name, _, _ = strings.Cut(name, ".")
	if name, err := hostToken(name); err == nil {
		return name
	}
	return "localhost"
}

func (l *loader) deriveDataDir() {
	s := &l.settings
	if s.DataDir == "" {
		l.problem("BUTLER_DATA_DIR", "set it to a folder: there is no default, since neither HOME nor XDG_DATA_HOME is set")
		return
	}
	abs, err := filepath.Abs(s.DataDir)
	if err != nil {
		l.problem("BUTLER_DATA_DIR", "write the whole path: the current folder is not known: %v", err)
		return
	}
	s.DataDir = abs
}

func (l *loader) deriveModel() {
	m := &l.settings.Model
	switch {
	case m.BaseURL != "" && m.Name == "":
		l.problem("BUTLER_MODEL", "set it to the model's name: BUTLER_BASE_URL is set, so the demo model is not meant")
	case m.BaseURL != "":
	case m.Name != "" && m.AnthropicKey != "":
		m.BaseURL = AnthropicBaseURL
		m.APIToken = m.AnthropicKey
		l.settings.origins["model.base_url"] = Origin{FromOther, "from ANTHROPIC_API_KEY"}
		l.settings.origins["model.api_token"] = Origin{FromOther, "from ANTHROPIC_API_KEY"}
	case m.Name != "":
		l.problem("BUTLER_BASE_URL", "set it to the endpoint that has the model %s, or set ANTHROPIC_API_KEY", quoted(m.Name))
	case m.APIToken != "":
		l.problem("BUTLER_BASE_URL", "set it and BUTLER_MODEL too: BUTLER_API_TOKEN alone does not say which model to use")
	case m.AnthropicKey != "":
		l.warn("ANTHROPIC_API_KEY is set but BUTLER_MODEL is not: the built-in demo model answers")
	}
}

func countSet(values ...string) (n int) {
	for _, v := range values {
		if v != "" {
			n++
		}
	}
	return n
}

// reachable gives the address that a client on the same machine dials for a listen address.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if err == nil && ip.Is6() {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}
