// Package config holds every setting of Butler: its YAML key, its environment variable, its default, its check and its
// meaning, in one table (table.go). Values come from the defaults, then one YAML file, then the environment; each later
// source wins. Load reports all problems at once, and docs/reference/settings.md is written from the same table.
package config

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"
)

//go:generate go test -run TestReferencePageIsFresh . -update

// Settings are the effective settings of one process. Take them from Load, or from Defaults in tests; they are plain
// values and safe to copy.
type Settings struct {
	// DataDir holds everything that a single machine keeps: the log, the SQLite database, keys. Absolute when it comes
	// from Load or Defaults.
	DataDir    string
	HTTP       HTTP
	Ops        Ops
	NATS       NATS
	Database   Database
	RPC        RPC
	Model      Model
	Compaction Compaction
	Turn       Turn
	Accounts   Accounts
	Messages   Messages
	Approval   Approval
	Shell      Shell
	// Language in which people are addressed who do not say: "en" or "zh".
	Language  string
	Log       Log
	Telemetry Telemetry

	origins map[string]Origin // by YAML key; a missing one is a default
}

// HTTP is the edge: the gateway's address and how browsers reach it.
type HTTP struct {
	Addr string // host:port to listen on
	// PublicURL is where people reach the gateway, without a slash at the end; empty when it is Addr.
	PublicURL string
	// TrustedProxies are the peers whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	// AllowedOrigins are the web origins beside Butler's own that may call the API from a browser.
	AllowedOrigins []string
	CookieSecure   CookieSecure
}

// CookieSecure says when the sign-in cookie has the Secure attribute.
type CookieSecure string

const (
	// CookieSecureAuto sets it when the request, or PublicURL, is https.
	CookieSecureAuto CookieSecure = "auto"
	// CookieSecureAlways sets it always.
	CookieSecureAlways CookieSecure = "true"
	// CookieSecureNever never sets it.
	CookieSecureNever CookieSecure = "false"
)

// Ops is the address of /health, /ready and /metrics.
type Ops struct {
	Addr string // host:port to listen on
}

// NATS is the log.
type NATS struct {
	// URL is one server or several with commas between them; empty means the embedded server.
	URL string
	// Addr is where the embedded server listens, host:port.
	Addr string
	// Credentials is the path of an nkey seed or of a .creds file; empty for none.
	Credentials string
	// AgentsKey is the path of the seed with which agent-registry signs which agents are let in; empty for that of the
	// embedded server.
	AgentsKey string
	// SyncInterval is how long the embedded server may hold acknowledged events before they are on disk; 0 means never:
	// each is synced before its acknowledgement.
	SyncInterval time.Duration
	// Replicas of each stream: 1, 3 or 5.
	Replicas int
}

// Embedded says whether this process runs the NATS server itself.
func (n NATS) Embedded() bool { return n.URL == "" }

// Database is SQL.
type Database struct {
	// URL of PostgreSQL; empty means SQLite in the data folder. It may hold a password: never log it.
	URL string
}

// RPC is gRPC between services.
type RPC struct {
	// Token is what services show each other; empty until `butler up` generates one.
	Token           Secret
	BrainAddr       string // host:port to listen on
	BrainTarget     string // gRPC target to dial
	RegistryAddr    string // host:port to listen on
	RegistryTarget  string // gRPC target to dial
	ApprovalAddr    string // host:port to listen on
	ApprovalTarget  string // gRPC target to dial
	PeopleAddr      string // host:port where the gateway listens for other services
	PeopleTarget    string // gRPC target to dial
	ShellAddr       string // host:port to listen on
	CompactorAddr   string // host:port to listen on
	CompactorTarget string // gRPC target to dial
	// ShellTargets are the shell-runners, each host=target; the first is used when nobody says which.
	ShellTargets []string
	// TLSCert, TLSKey and TLSCA are PEM files for mutual TLS; all three or none.
	TLSCert, TLSKey, TLSCA string
}

// Model is the language model's endpoint.
type Model struct {
	// BaseURL of an OpenAI-compatible API; empty means the built-in demo model.
	BaseURL      string
	APIToken     Secret
	Name         string
	AnthropicKey Secret
	// ContextWindow bounds the prompt, in tokens as estimated from its characters.
	ContextWindow int
	// IdleTimeout ends a call in which nothing arrives for so long.
	IdleTimeout time.Duration
	// Retries of a call that failed before any text was streamed; 0 for none.
	Retries int
}

// Demo says whether the built-in demo model answers.
func (m Model) Demo() bool { return m.BaseURL == "" }

// Compaction says when older messages are summarised, and by which model.
type Compaction struct {
	Enabled bool
	// BaseURL, APIToken and Model of the endpoint that writes summaries; what is empty is the model's own.
	BaseURL  string
	APIToken Secret
	Model    string
	// ContextWindow of that model, in tokens; 0 means the model's own.
	ContextWindow int
	// TriggerMessages, TriggerChars and TriggerTokens are what a conversation may have beyond its last summary; 0 tokens
	// mean half of the model's context window.
	TriggerMessages, TriggerChars, TriggerTokens int
	// RecentWindow is how many of the newest messages stay as they are.
	RecentWindow int
}

// Turn limits how a message is answered.
type Turn struct {
	// MaxSteps is how many model calls one turn may make.
	MaxSteps int
	// Timeout is the active time of one turn; waiting for people and agents does not count.
	Timeout time.Duration
	// MaxConcurrent is how many turns one replica executes at the same time.
	MaxConcurrent int
	// SystemPromptFile is added to the built-in system prompt; empty for none.
	SystemPromptFile string
}

// Messages limits what one person may send. 0 is no limit.
type Messages struct {
	// Rate is how many messages in a second, Burst how many at once.
	Rate, Burst int
	// MaxWaiting is how many may wait for their answer.
	MaxWaiting int
}

// Accounts is how people sign in.
type Accounts struct {
	AdminUser string
	// AdminPassword of the first admin; empty means one is generated.
	AdminPassword Secret
	// SignInLifetime is how long a sign-in lasts.
	SignInLifetime time.Duration
	// PasswordMemoryKiB and PasswordTime are the cost of argon2id.
	PasswordMemoryKiB uint32
	PasswordTime      uint32
}

// Approval is who may allow what, and how long it may take.
type Approval struct {
	// Timeout is how long a request may be decided.
	Timeout time.Duration
	// RunTimeout is how long after its decision an approved effect may begin.
	RunTimeout time.Duration
	// PolicyFile is a YAML file with the policy; empty means the built-in one.
	PolicyFile string
	// KeyFile holds the private key that signs grants and the audit chain, made when it is missing.
	KeyFile string
}

// Shell is the shell-runner of this host.
type Shell struct {
	// Host names it: a token of subjects.
	Host string
	// AllowedUsers are ids of people or identities in channels. Empty means nobody, but for the first admin under
	// `butler up`.
	AllowedUsers []string
	// IdleTimeout ends a session in which nothing happened and nothing runs.
	IdleTimeout time.Duration
	MaxPerUser  int
	MaxTotal    int
	// CommandTimeout is how long a command is waited for; it may go on as a job.
	CommandTimeout time.Duration
	// LogOutput is how much of one command's output is logged, in MiB; 0: long output is not logged whole.
	LogOutput int
	// OSUsers maps people to users of the system, each person=user, when the runner is root. Empty: single-user mode.
	OSUsers []string
	// GuardEnabled is false only in single-user mode, and then nothing is asked but by the policy.
	GuardEnabled bool
	// DangerPatterns are texts that make a command be asked for, beside what the guard finds.
	DangerPatterns []string
}

// Log is what is written to standard error.
type Log struct {
	Level  slog.Level
	Format string // "auto" (text on a terminal, else json), "text" or "json"
}

// Telemetry is what leaves the process about its own work.
type Telemetry struct {
	// OTLPEndpoint is the base URL of an OTLP/HTTP collector; empty means that traces are not exported.
	OTLPEndpoint string
}

// Path gives the path of a file in the data folder.
func (s Settings) Path(elem ...string) string {
	return filepath.Join(append([]string{s.DataDir}, elem...)...)
}

const mask = "********"

// Secret is a value that no log, error or dump may show: every way of printing it gives a mask. Reveal gives the value.
type Secret string

// Reveal gives the value, for the one place that needs it.
func (s Secret) Reveal() string { return string(s) }

// String gives a mask, or "" when there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// GoString gives a mask.
func (s Secret) GoString() string { return `config.Secret("` + s.String() + `")` }

// LogValue gives a mask.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON gives a mask.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalText gives a mask.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
