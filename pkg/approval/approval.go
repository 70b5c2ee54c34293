// Package approval is what the service that approves and those that execute share: how an effect is digested, how a
// grant is signed and verified, the subjects, and how the audit chain is linked. It decides nothing.
package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/google/uuid"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Types of the events.
const (
	TypeApproval = "butler.approval.changed"
	TypeUse      = "butler.approval.used"
	TypeAudit    = "butler.audit.linked"
	TypeDue      = "butler.approval.due"
	TypeShell    = "butler.shell.logged"
	TypeOutput   = "butler.shell.output"
)

// Statuses of an approval.
const (
	Pending   = "pending"
	Approved  = "approved"
	Denied    = "denied"
	Expired   = "expired"
	Withdrawn = "withdrawn"
	Refused   = "refused" // by the policy
)

// Statuses of a use.
const (
	Taken   = "taken"
	Ended   = "ended"
	Unknown = "unknown" // it may have happened
	// UseRefused: the grant was taken, and the effect did not happen.
	UseRefused = "refused"
)

// Kinds of an effect.
const (
	KindCommand = "command"
	KindInput   = "input"
	KindAgent   = "agent"
)

// Who proposed an effect.
const (
	ByPerson = "person"
	ByModel  = "model"
	ByAgent  = "agent"
)

// Bounds of what is asked for and decided, in bytes.
const (
	MaxCommand = 16 << 10 // a command, also an edited one
	MaxReason  = 4 << 10  // the words of a decision
)

// AuditSubject is where the chain stands.
const AuditSubject = "butler.audit"

// namespace makes the ids of approvals differ from all other UUIDs made of the same words.
var namespace = uuid.MustParse("6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57")

// NewID makes the id of an approval out of what identifies the wish for it, so that asking again asks for the same.
func NewID(parts ...string) string {
	return uuid.NewSHA1(namespace, []byte(strings.Join(parts, "\x00"))).String()
}

// ValidID says whether id can be an approval's.
func ValidID(id string) bool { return uuid.Validate(id) == nil && len(id) == 36 }

// RequestSubject is where an approval stands; "*" for all.
func RequestSubject(id string) string { return "butler.approval." + id }

// UseSubject is where the use of an approval's grant stands; "*" for all.
func UseSubject(host, id string) string { return "butler.approval-use." + host + "." + id }

// TimerSubject is the schedule of an approval's expiry, WorkSubject where it fires.
func TimerSubject(id string) string { return "butler.timer.approval." + id }

// WorkSubject is the work item that ends a request that nobody decided.
func WorkSubject(id string) string { return "butler.work.approval." + id }

// ShellSubject is where a session's commands are logged.
func ShellSubject(host, session string) string { return "butler.shell." + host + "." + session }

// OutputSubject is where the output of a command is logged, in pieces, when it is longer than what its outcome keeps.
func OutputSubject(host, session, id string) string { return ShellSubject(host, session) + "." + id }

var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// ValidHost says whether name can name a shell-runner: 1–63 characters of A–Z, a–z, 0–9, - and _, since it is a token of
// subjects.
func ValidHost(name string) bool { return hostName.MatchString(name) }

// Digest gives the SHA-256 in hex of everything that is approved with e. It is computed over a JSON form with a fixed
// order of fields, which both sides make anew, so that a newer version of Butler gets the same for the same version of
// the document.
func Digest(e *butlerv1.Effect) string {
	type script struct {
		Path   string `json:"path"`
		SHA256 string `json:"sha256"`
	}
	type definition struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
	doc := struct {
		Version     int32             `json:"version"`
		Kind        string            `json:"kind"`
		Command     string            `json:"command"`
		Argv        [][]string        `json:"argv"`
		Dir         string            `json:"dir"`
		Host        string            `json:"host"`
		User        string            `json:"user"`
		Environment map[string]string `json:"environment"`
		Scripts     []script          `json:"scripts"`
		Session     string            `json:"session"`
		Definitions []definition      `json:"definitions"`
		Program     string            `json:"program"`
		AgentID     int64             `json:"agent_id"`
	}{
		Version: e.GetVersion(), Kind: e.GetKind(), Command: e.GetCommand(), Dir: e.GetDir(), Host: e.GetHost(), User: e.GetUser(),
		Environment: e.GetEnvironment(), Session: e.GetSession(), Program: e.GetProgram(), AgentID: e.GetAgentId(),
	}
	for _, a := range e.GetArgv() {
		doc.Argv = append(doc.Argv, a.GetArgs())
	}
	for _, s := range e.GetScripts() {
		doc.Scripts = append(doc.Scripts, script{s.GetPath(), s.GetSha256()})
	}
	for _, d := range e.GetDefinitions() {
		doc.Definitions = append(doc.Definitions, definition{d.GetName(), d.GetKind(), d.GetText()})
	}
	if len(doc.Environment) == 0 {
		doc.Environment = nil
	}
	data, _ := json.Marshal(doc) // strings and numbers
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
