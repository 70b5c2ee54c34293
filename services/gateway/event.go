package gateway

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
)

// event is what the gateway needs of an event of CHAT or DELTA. Which fields are set depends on kind.
type event struct {
	kind    eventKind
	seq     uint64 // in its stream
	at      time.Time
	turn    chat.Turn
	key     string // turn.String()
	text    string
	localID string // asked: the client's id; answer and delta: that of the question

	sender actor // asked

	streamID string // delta, answer
	index    int32  // delta
	notice   bool   // delta: words about a command on the stream of its approval, and no output of it
	end      bool   // delta

	status, reason, model string // answer
	deltas                int32  // answer: how many deltas streamID has
	usage                 usage  // answer
	replyTo               uint64 // answer: sequence of the question, 0 while unknown
	shell                 []byte // answer: the shell's state as JSON, when the turn had to do with one
	attach                string // answer: on or off when the conversation's shell was attached or not any more
}

type eventKind uint8

const (
	eventAsked eventKind = iota + 1
	eventDelta
	eventAnswer
)

// actor is who says something, as frames show it.
type actor struct {
	id   int64
	name string
	role string
}

type usage struct {
	prompt, completion    int64
	modelCalls, toolCalls int32
}

// integer reads the JSON forms of a 64-bit integer: a string, as protobuf writes it, or a number.
type integer int64

func (n *integer) UnmarshalJSON(b []byte) error {
	if len(b) > 1 && b[0] == '"' {
		b = b[1 : len(b)-1]
	}
	v, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", b)
	}
	*n = integer(v)
	return nil
}

// The shapes below are the parts of the messages in proto/butler/v1/chat.proto that clients see. They are decoded with
// encoding/json and not with protojson, because every frame of every connection passes here and an answer can carry a
// long journal that is of no concern: this is three times as fast and skips it. A test holds them against the messages.

type wireAsked struct {
	Sender struct {
		ID   integer `json:"id"`
		Name string  `json:"name"`
		Role string  `json:"role"`
	} `json:"sender"`
	LocalID string `json:"local_id"`
	Text    string `json:"text"`
}

type wireAnswer struct {
	End struct {
		Status string `json:"status"`
		Reason string `json:"reason"`
		Result struct {
			Text           string     `json:"text"`
			StreamID       string     `json:"stream_id"`
			Deltas         int32      `json:"deltas"`
			ReplyToLocalID string     `json:"reply_to_local_id"`
			Model          string     `json:"model"`
			Shell          *wireShell `json:"shell"`
			Attach         string     `json:"attach"`
			Usage          struct {
				PromptTokens     integer `json:"prompt_tokens"`
				CompletionTokens integer `json:"completion_tokens"`
				ModelCalls       int32   `json:"model_calls"`
				ToolCalls        int32   `json:"tool_calls"`
			} `json:"usage"`
		} `json:"result"`
	} `json:"end"`
}

// wireShell is what clients see of butlerv1.ShellState.
type wireShell struct {
	Host     string `json:"host"`
	Dir      string `json:"dir"`
	Mode     string `json:"mode"`  // nl or interactive
	State    string `json:"state"` // idle, running, blocked or unknown
	Program  string `json:"program,omitempty"`
	Name     string `json:"name"`
	Password bool   `json:"password,omitempty"`
}

type wireDelta struct {
	StreamID       string `json:"stream_id"`
	Index          int32  `json:"index"`
	Text           string `json:"text"`
	End            bool   `json:"end"`
	Turn           string `json:"turn"`
	ReplyToLocalID string `json:"reply_to_local_id"`
}

// decodeChat reads an event of CHAT. Only questions and answers are of interest: for anything else, and for what does
// not fit its subject or type, it returns nil and no error, or an error that says what does not fit.
func decodeChat(s bus.Stored) (*event, error) {
	turn, kind, err := chat.ParseSubject(s.Subject)
	if err != nil {
		return nil, err
	}
	if kind != chat.Asked && kind != chat.Answer {
		return nil, nil
	}
	if s.Type != kind.Type() {
		return nil, fault.New(fault.Invalid, "an event of type %q on %s", s.Type, s.Subject)
	}
	ev := &event{seq: s.Seq, at: s.At, turn: turn, key: turn.String()}
	if kind == chat.Asked {
		var m wireAsked
		if err := json.Unmarshal(s.Data, &m); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "a question that cannot be read on %s", s.Subject)
		}
		if int64(m.Sender.ID) != turn.Person || chat.TurnID(m.LocalID) != turn.ID {
			return nil, fault.New(fault.Invalid, "a question that does not fit its subject %s", s.Subject)
		}
		ev.kind, ev.text, ev.localID = eventAsked, m.Text, m.LocalID
		ev.sender = actor{int64(m.Sender.ID), m.Sender.Name, m.Sender.Role}
		return ev, nil
	}
	var m wireAnswer
	if err := json.Unmarshal(s.Data, &m); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "an answer that cannot be read on %s", s.Subject)
	}
	r := &m.End.Result
	if chat.TurnID(r.ReplyToLocalID) != turn.ID {
		return nil, fault.New(fault.Invalid, "an answer that does not fit its subject %s", s.Subject)
	}
	ev.kind, ev.text, ev.localID = eventAnswer, r.Text, r.ReplyToLocalID
	ev.status, ev.reason, ev.model = m.End.Status, m.End.Reason, r.Model
	ev.streamID, ev.deltas = r.StreamID, r.Deltas
	if r.Shell != nil {
		if ev.shell, err = json.Marshal(r.Shell); err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "an answer that cannot be read on %s", s.Subject)
		}
	}
	if r.Attach == "on" || r.Attach == "off" {
		ev.attach = r.Attach
	}
	ev.usage = usage{int64(r.Usage.PromptTokens), int64(r.Usage.CompletionTokens), r.Usage.ModelCalls, r.Usage.ToolCalls}
	return ev, nil
}

// decodeDelta reads an event of DELTA.
func decodeDelta(s bus.Stored) (*event, error) {
	session, err := chat.ParseDelta(s.Subject)
	if err != nil {
		return nil, err
	}
	if s.Type != chat.TypeDelta {
		return nil, fault.New(fault.Invalid, "an event of type %q on %s", s.Type, s.Subject)
	}
	var m wireDelta
	if err := json.Unmarshal(s.Data, &m); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "a delta that cannot be read on %s", s.Subject)
	}
	turn := m.Turn
	if i := lastDot(turn); i >= 0 { // the turn's whole name is taken as well as its own token
		turn = turn[i+1:]
	}
	if turn == "" || m.StreamID == "" || chat.TurnID(m.ReplyToLocalID) != turn {
		return nil, fault.New(fault.Invalid, "a delta that does not fit its turn on %s", s.Subject)
	}
	t := chat.Turn{Session: session, ID: turn}
	return &event{
		kind: eventDelta, seq: s.Seq, at: s.At, turn: t, key: t.String(),
		text: m.Text, localID: m.ReplyToLocalID, streamID: m.StreamID, index: m.Index, end: m.End,
		// What a stream itself says is numbered from 1.
		notice: m.Index == 0 && !m.End && approval.ValidID(m.StreamID),
	}, nil
}

func lastDot(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '.' {
			return i
		}
	}
	return -1
}
