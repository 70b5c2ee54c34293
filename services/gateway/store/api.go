package store

import "time"

// Role says what a person may do.
type Role string

// Roles.
const (
	Admin      Role = "ADMIN"
	Member     Role = "MEMBER"
	ButlerRole Role = "BUTLER" // Butler itself; nobody can be given it
)

// Person is a person, or Butler.
type Person struct {
	ID        int64
	Name      string
	Role      Role
	Disabled  bool // cannot sign in, and has no valid token
	CreatedAt time.Time
	UpdatedAt time.Time
}

// NewPerson describes a person to create.
type NewPerson struct {
	Name     string // 1–64 characters after trimming, unique without regard to case
	Role     Role   // Admin or Member
	Password string // 8–1024 bytes
}

// Change is what UpdatePerson changes; nil fields stay.
type Change struct {
	Role     *Role
	Password *string // ends all of the person's tokens
	Disabled *bool   // true ends all of the person's tokens
}

// TokenKind is what a token is for.
type TokenKind string

// Kinds of token.
const (
	SessionToken  TokenKind = "session"  // signed in, on one device
	PersonalToken TokenKind = "personal" // made by a person for a program
	TicketToken   TokenKind = "ticket"   // opens one WebSocket, once
)

// Token is a token without its secret, which is stored only as a hash.
type Token struct {
	ID         int64
	PersonID   int64
	Kind       TokenKind
	Name       string
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	LastUsedAt time.Time // exact to a minute; zero: never
	RevokedAt  time.Time // zero: valid
}

// ChannelKind is what kind of conversation a thread holds.
type ChannelKind string

// Kinds of channel, under EchoCenter's names.
const (
	ButlerDirect ChannelKind = "butler_direct" // a person and Butler
	AgentDirect  ChannelKind = "agent_direct"  // a person and an agent
)

// Thread is one conversation of a person.
type Thread struct {
	ID            int64
	OwnerID       int64
	PeerID        int64
	ChannelKind   ChannelKind
	Title         string // empty until somebody said something
	Summary       string
	Pinned        bool
	Default       bool
	ArchivedAt    time.Time // zero: not archived
	LastMessageAt time.Time // zero: no message yet
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// NewThread describes a thread to create.
type NewThread struct {
	PeerID      int64       // 0: Butler
	ChannelKind ChannelKind // empty: ButlerDirect with Butler, AgentDirect with anybody else
	Title       string      // empty: made of the first message
}

// ThreadFilter selects threads; zero fields select all.
type ThreadFilter struct {
	PeerID      int64
	ChannelKind ChannelKind
	Archived    *bool  // only those that are, or are not, archived
	Query       string // part of the title or summary, without regard to case
	Limit       int    // default and at most MaxThreads
}

// ThreadChange is what UpdateThread changes; nil fields stay.
type ThreadChange struct {
	Title    *string // empty: made of the next message
	Summary  *string
	Pinned   *bool
	Archived *bool
}

// Whose message it is.
const (
	HumanMessage  = "human"
	ButlerMessage = "butler"
)

// Message is one message of a conversation, as the log has it.
type Message struct {
	ID             uint64 // sequence in the CHAT stream
	PersonID       int64  // whose conversation
	ThreadID       int64
	Turn           string
	LocalID        string
	Role           string // HumanMessage or ButlerMessage
	SenderID       int64
	SenderName     string
	SenderRole     string
	Text           string
	StreamID       string // Butler's messages: the stream in which the text was sent
	Status         string // Butler's messages: answered, failed or stopped
	Reason         string // machine-readable, when not answered
	ReplyToLocalID string // Butler's messages: which message is answered
	Usage          *Usage // Butler's messages; nil when unknown
	CreatedAt      time.Time
}

// Usage counts what a turn used.
type Usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	ModelCalls       int32 `json:"model_calls"`
	ToolCalls        int32 `json:"tool_calls"`
}

// Projection says how far the read model is.
type Projection struct {
	Position  uint64 // highest sequence that was applied; 0: none
	Applied   int64  // messages stored
	Ignored   int64  // messages of threads that do not exist (any longer), or that are another person's
	UpdatedAt time.Time
}
