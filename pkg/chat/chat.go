// Package chat is the conversation as it stands in the log: which subjects a session and its turns have, how a turn's id
// is made, and what their events say. The gateway, butler-brain and whoever reads the log share it; the subjects are
// described for outsiders in proto/asyncapi.yaml.
package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/butlerhub/butler/pkg/fault"
)

// Limits of what comes in.
const (
	// MaxText is the size of a message's text, in bytes.
	MaxText = 256 << 10
	// MaxLocalID is the size of a client's message id, in bytes.
	MaxLocalID = 128
)

// Partitions is how many partitions the sessions are spread over. The stream's transform writes the partition into every
// stored subject, and the server would accept another number silently, so it never changes.
const Partitions = 32

// Event types, as in the CloudEvents attribute "type".
const (
	TypeAsked  = "butler.chat.asked"
	TypeStep   = "butler.chat.step"
	TypeSignal = "butler.chat.signal"
	TypeStop   = "butler.chat.stop"
	TypeAnswer = "butler.chat.answer"
	TypeDelta  = "butler.chat.delta"
	// Of a session, not of one of its turns.
	TypeSummary = "butler.chat.summary"
	TypePins    = "butler.chat.pins"
	// Of a work item.
	TypeCompact = "butler.work.compact"
)

// Kind is the last token of a turn's subject.
type Kind string

// The kinds of a turn's events.
const (
	Asked  Kind = "asked"
	Step   Kind = "step"
	Signal Kind = "signal"
	Stop   Kind = "stop"
	Answer Kind = "answer"
)

// Type gives the event type of a kind.
func (k Kind) Type() string { return "butler.chat." + string(k) }

// Session is one conversation of one person.
type Session struct {
	Person int64 // id of the person whose conversation it is
	Thread int64 // conversation_id
}

// String gives the session as its two subject tokens, "<person>.<thread>".
func (s Session) String() string {
	return strconv.FormatInt(s.Person, 10) + "." + strconv.FormatInt(s.Thread, 10)
}

// Partition is where the stream's transform puts the session, 0 to Partitions-1: the FNV-1a hash (32 bits) of the digits
// of person and thread, one after the other, modulo Partitions.
func (s Session) Partition() int {
	h := fnv.New32a()
	_, _ = h.Write(strconv.AppendInt(strconv.AppendInt(nil, s.Person, 10), s.Thread, 10)) // it never fails
	return int(h.Sum32() % Partitions)
}

// stored is what every stored subject of the session begins with.
func (s Session) stored() string {
	return "butler.chat." + strconv.Itoa(s.Partition()) + "." + s.String() + "."
}

// Filter matches every event of the session in CHAT. Like every filter it is in stored form.
func (s Session) Filter() string { return s.stored() + ">" }

// KindFilter matches every event of one kind of the session's turns.
func (s Session) KindFilter(k Kind) string { return s.stored() + "*." + string(k) }

// The last tokens of what stands beside the turns of a session.
const (
	summaryToken = "summary"
	pinsToken    = "pins"
)

// Summary is where the session's summaries are published.
func (s Session) Summary() string { return "butler.chat." + s.String() + "." + summaryToken }

// StoredSummary is where they are stored; each append is conditional on the last sequence of it.
func (s Session) StoredSummary() string { return s.stored() + summaryToken }

// Pins is where what is pinned in the session is published.
func (s Session) Pins() string { return "butler.chat." + s.String() + "." + pinsToken }

// StoredPins is where that is stored; each append is conditional on the last sequence of it.
func (s Session) StoredPins() string { return s.stored() + pinsToken }

// Compact is the subject of the work item that has the session compacted.
func (s Session) Compact() string { return "butler.work.compact." + s.String() }

// Delta is the session's subject in DELTA.
func (s Session) Delta() string { return "butler.delta." + s.String() }

// Turn is one message of a person and what follows from it.
type Turn struct {
	Session
	ID string // see TurnID
}

// String gives the turn as its three subject tokens, "<person>.<thread>.<turn>".
func (t Turn) String() string { return t.Session.String() + "." + t.ID }

// Filter matches every event of the turn; each append of the turn is conditional on the last sequence of exactly this
// filter, whoever writes.
func (t Turn) Filter() string { return t.stored() + t.ID + ".>" }

// Subject is where an event of the given kind is published.
func (t Turn) Subject(k Kind) string { return "butler.chat." + t.String() + "." + string(k) }

// Stored is the subject under which an event of the given kind is stored: what is published, with the session's partition
// before the person.
func (t Turn) Stored(k Kind) string { return t.stored() + t.ID + "." + string(k) }

// Signal is the subject of the work item that tells the turn what it waits for.
func (t Turn) Signal(key string) string { return "butler.work.turn." + t.String() + "." + key }

// Timer is the subject of the schedule that fires the work item Signal(key).
func (t Turn) Timer(key string) string { return "butler.timer.turn." + t.String() + "." + key }

// Filters over all sessions.
const (
	AllAsked  = "butler.chat.*.*.*.*.asked"
	AllAnswer = "butler.chat.*.*.*.*.answer"
	// AllSummaries and AllPins match what stands beside the turns, of every session.
	AllSummaries = "butler.chat.*.*.*.summary"
	AllPins      = "butler.chat.*.*.*.pins"
	// AllCompact matches every work item that asks for a summary.
	AllCompact = "butler.work.compact.*.*"
	AllDeltas  = "butler.delta.*.*"
)

// PartitionFilter matches every event of one kind of the sessions in one partition.
func PartitionFilter(p int, k Kind) string { return fmt.Sprintf("butler.chat.%d.*.*.*.%s", p, k) }

// PersonFilter matches every event of one person's conversations.
func PersonFilter(person int64) string { return fmt.Sprintf("butler.chat.*.%d.>", person) }

// PersonKindFilter matches every event of one kind of one person's conversations.
func PersonKindFilter(person int64, k Kind) string {
	return fmt.Sprintf("butler.chat.*.%d.*.*.%s", person, k)
}

// PersonDeltas matches every delta of one person's conversations.
func PersonDeltas(person int64) string { return fmt.Sprintf("butler.delta.%d.*", person) }

// TurnID makes a turn's token of the client's message id. It is the id itself where that is a plain token, so that the
// log can be read; anything else is hashed. The hashed form cannot be chosen as a plain one.
func TurnID(localID string) string {
	if plain(localID) && !strings.HasPrefix(localID, "h-") {
		return localID
	}
	sum := sha256.Sum256([]byte(localID))
	return "h-" + hex.EncodeToString(sum[:16])
}

func plain(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// ParseTurn reads a turn from its three tokens, as Turn.String gives them.
func ParseTurn(s string) (Turn, error) {
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return Turn{}, fault.New(fault.Invalid, "%q is not a turn: <person>.<thread>.<turn> is expected", s)
	}
	t, err := parse(parts[0], parts[1], parts[2])
	if err != nil {
		return Turn{}, err
	}
	return t, nil
}

// ParseSubject reads turn and kind from a published or stored subject of CHAT. Subjects of other shapes give an error:
// their readers pass over them.
func ParseSubject(subject string) (Turn, Kind, error) {
	p := strings.Split(subject, ".")
	partition := ""
	if len(p) == 7 {
		partition = p[2]
		p = slices.Delete(p, 2, 3)
	}
	if len(p) != 6 || p[0] != "butler" || p[1] != "chat" {
		return Turn{}, "", fault.New(fault.Invalid, "%q is not the subject of a turn's event", subject)
	}
	t, err := parse(p[2], p[3], p[4])
	if err != nil {
		return Turn{}, "", err
	}
	if partition != "" && partition != strconv.Itoa(t.Partition()) {
		return Turn{}, "", fault.New(fault.Invalid, "%q is not in the partition of its session", subject)
	}
	switch k := Kind(p[5]); k {
	case Asked, Step, Signal, Stop, Answer:
		return t, k, nil
	default:
		return Turn{}, "", fault.New(fault.Invalid, "%q is no kind of a turn's event", p[5])
	}
}

// ParseBeside reads the session from the stored subject of its summaries or of its pins, and the type of event that
// belongs there. Other subjects give an error.
func ParseBeside(subject string) (Session, string, error) {
	p := strings.Split(subject, ".")
	if len(p) == 6 && p[0] == "butler" && p[1] == "chat" {
		t, err := parse(p[3], p[4], "x")
		switch {
		case err != nil || p[2] != strconv.Itoa(t.Partition()):
		case p[5] == summaryToken:
			return t.Session, TypeSummary, nil
		case p[5] == pinsToken:
			return t.Session, TypePins, nil
		}
	}
	return Session{}, "", fault.New(fault.Invalid, "%q is not the stored subject of a summary or of pins", subject)
}

// ParseCompact reads the session from the subject of a work item that asks for a summary.
func ParseCompact(subject string) (Session, error) {
	p := strings.Split(subject, ".")
	if len(p) != 5 || p[0] != "butler" || p[1] != "work" || p[2] != "compact" {
		return Session{}, fault.New(fault.Invalid, "%q is not the subject of a work item that asks for a summary", subject)
	}
	t, err := parse(p[3], p[4], "x")
	return t.Session, err
}

// ParseDelta reads the session from a subject of DELTA.
func ParseDelta(subject string) (Session, error) {
	p := strings.Split(subject, ".")
	if len(p) != 4 || p[0] != "butler" || p[1] != "delta" {
		return Session{}, fault.New(fault.Invalid, "%q is not the subject of a delta", subject)
	}
	t, err := parse(p[2], p[3], "x")
	return t.Session, err
}

// ParseWork reads turn and key from the subject of a turn's work item or timer.
func ParseWork(subject string) (Turn, string, error) {
	p := strings.Split(subject, ".")
	if len(p) != 7 || p[0] != "butler" || p[1] != "work" && p[1] != "timer" || p[2] != "turn" {
		return Turn{}, "", fault.New(fault.Invalid, "%q is not the subject of a turn's work item", subject)
	}
	t, err := parse(p[3], p[4], p[5])
	return t, p[6], err
}

func parse(person, thread, turn string) (Turn, error) {
	p, err1 := strconv.ParseInt(person, 10, 64)
	t, err2 := strconv.ParseInt(thread, 10, 64)
	if err1 != nil || err2 != nil || p <= 0 || t <= 0 || !plain(turn) {
		return Turn{}, fault.New(fault.Invalid, "%s.%s.%s is not a turn", person, thread, turn)
	}
	return Turn{Session: Session{Person: p, Thread: t}, ID: turn}, nil
}
