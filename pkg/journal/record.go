package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"time"
)

// Kind says what a record is, which is also which of the unit's subjects it stands on. Readers skip kinds that they do
// not know.
type Kind string

// Kinds of records.
const (
	KindOpen   Kind = "open"   // begins the unit; written by whoever wants it done
	KindStep   Kind = "step"   // entries of the worker
	KindSignal Kind = "signal" // one signal entry, written by any worker that relays it
	KindCancel Kind = "cancel" // asks that the unit ends now; written by whoever may
	KindEnd    Kind = "end"    // the last record: remaining entries and the End
)

// Record is one record of a unit: one message of the log.
type Record struct {
	Seq     uint64          // sequence in the log; set by the Log
	At      time.Time       // when the log stored it; set by the Log
	ID      string          // the append's own id, the same over retries, never used again
	Kind    Kind            //
	Worker  string          // who wrote it (step, signal, end)
	Entries []Entry         // step, signal, end
	End     *End            // end
	Body    json.RawMessage // the whole payload (open, cancel)
}

// Kinds of entries.
const (
	EntryClaim   = "claim"
	EntryIntent  = "intent"
	EntryOutcome = "outcome"
	EntryAwait   = "await"
	EntrySignal  = "signal"
)

// Entry is one fact of a unit. Its JSON is the protobuf JSON form of butler.v1.JournalEntry, with the proto field names;
// readers skip kinds and fields that they do not know.
type Entry struct {
	Kind        string          `json:"kind"`
	Key         string          `json:"key,omitempty"`
	Repeat      Repeat          `json:"repeat,omitempty"`
	Description string          `json:"description,omitempty"`
	Value       json.RawMessage `json:"value,omitempty"`
	Error       *EntryError     `json:"error,omitempty"`
	Spent       *Spent          `json:"spent,omitempty"`
	Deadline    time.Time       `json:"deadline,omitzero"`
	Attempt     int32           `json:"attempt,omitempty"`
	Timeout     bool            `json:"timeout,omitempty"`
}

// EntryError is a recorded failure (butler.v1.JournalError).
type EntryError struct {
	Class   string `json:"class,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

func (e *EntryError) failure() *Failure {
	return &Failure{Class: e.Class, Code: e.Code, Message: e.Message}
}

// Spent is what a step used, or a Budget (butler.v1.JournalSpent).
type Spent struct {
	ModelCalls int32 `json:"model_calls,omitempty"`
	ToolCalls  int32 `json:"tool_calls,omitempty"`
	Tokens     int32 `json:"tokens,omitempty"`
	ActiveMs   int32 `json:"active_ms,omitempty"`
}

// End is how a unit ended. Status and Reason are the product's words (answered, failed, stopped; model_unavailable);
// Result is JSON for whoever reads the last record.
type End struct {
	Status string          `json:"status"`
	Reason string          `json:"reason,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// payload is the JSON of step, signal and end records: butler.v1.ChatStep, ChatSignal, ChatAnswer.
type payload struct {
	Worker  string  `json:"worker,omitempty"`
	Entries []Entry `json:"entries,omitempty"`
	End     *End    `json:"end,omitempty"`
}

// Encode gives the record's payload as it is stored: Body for open and cancel, else a JSON object with worker, entries
// and end. Values keep their bytes.
func (r Record) Encode() ([]byte, error) {
	if r.Kind == KindOpen || r.Kind == KindCancel {
		return r.Body, nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // would rewrite < in values
	if err := enc.Encode(payload{Worker: r.Worker, Entries: r.Entries, End: r.End}); err != nil {
		return nil, fmt.Errorf("journal: encode %s: %w", r.Kind, err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}

// Decode reads a stored payload into the record, whose Kind is set. The record keeps data. It is an error when a step,
// signal or end is not a JSON object of the known form; unknown fields and kinds of entries are no error.
func (r *Record) Decode(data []byte) error {
	if r.Kind == KindOpen || r.Kind == KindCancel {
		r.Body = data
		return nil
	}
	var p payload
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("journal: decode %s: %w", r.Kind, err)
	}
	r.Worker, r.Entries, r.End = p.Worker, p.Entries, p.End
	if r.Kind == KindEnd && r.End == nil {
		return fmt.Errorf("journal: decode end: the record says no end")
	}
	return nil
}

var keyForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidKey says whether key can name a step: 1–64 characters of A–Z, a–z, 0–9, _ and -.
func ValidKey(key string) bool { return keyForm.MatchString(key) }
