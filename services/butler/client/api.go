package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// User is a person, or Butler.
type User struct {
	ID        int64      `json:"id"`
	Username  string     `json:"username"`
	Role      string     `json:"role"` // ADMIN, MEMBER, AGENT or BUTLER
	Disabled  bool       `json:"disabled,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
}

// Thread is one conversation.
type Thread struct {
	ID            int64      `json:"id"`
	PeerID        int64      `json:"peer_user_id"`
	Title         string     `json:"title"`
	Pinned        bool       `json:"is_pinned"`
	Default       bool       `json:"is_default"`
	ArchivedAt    *time.Time `json:"archived_at"`
	LastMessageAt *time.Time `json:"last_message_at"`
	CreatedAt     *time.Time `json:"created_at"`
}

// Message is one message of a conversation, from the history or from the answer to Send.
type Message struct {
	ID             uint64          `json:"id"`
	LocalID        string          `json:"local_id"`
	ConversationID int64           `json:"conversation_id"`
	SenderID       int64           `json:"sender_id"`
	SenderName     string          `json:"sender_name"`
	SenderRole     string          `json:"sender_role"`
	Text           string          `json:"payload"`
	StreamID       string          `json:"stream_id,omitempty"`
	ReplyToLocalID string          `json:"reply_to_local_id,omitempty"`
	Status         string          `json:"status,omitempty"` // Butler's: answered, failed or stopped
	Reason         string          `json:"reason,omitempty"`
	Timestamp      time.Time       `json:"timestamp"`
	Usage          json.RawMessage `json:"usage,omitempty"`
}

// Token lets a person, or a program of theirs, in.
type Token struct {
	ID         int64      `json:"id"`
	Kind       string     `json:"kind"` // personal, or session for a sign-in
	Name       string     `json:"name"`
	CreatedAt  *time.Time `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
	Current    bool       `json:"current"`         // the one that the client uses
	Secret     string     `json:"token,omitempty"` // only when it was just made
}

// Page is a part of a list with the list's own JSON, for programs that want all of it.
type Page[T any] struct {
	Items []T
	Raw   json.RawMessage
	// Stale: the service that knows does not answer, and this is what the gateway remembers.
	Stale bool
}

// Login signs in and gives the token, and whose it is.
func (c *Client) Login(ctx context.Context, username, password string) (token string, user User, err error) {
	var out struct {
		Token string `json:"token"`
		User  User   `json:"user"`
	}
	in := map[string]string{"username": username, "password": password}
	err = c.WithToken("").call(ctx, http.MethodPost, "/api/auth/login", nil, in, &out)
	return out.Token, out.User, err
}

// Logout ends the sign-in of the client's token.
func (c *Client) Logout(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/api/auth/logout", nil, nil, nil)
}

// Me says who is signed in.
func (c *Client) Me(ctx context.Context) (User, error) {
	var out User
	return out, c.call(ctx, http.MethodGet, "/api/auth/me", nil, nil, &out)
}

// Ping returns nil when a gateway answers.
func (c *Client) Ping(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/api/ping", nil, nil, nil)
}

// ChangePassword changes the password of who is signed in. All their sign-ins and tokens end; token is a new sign-in.
func (c *Client) ChangePassword(ctx context.Context, current, replacement string) (token string, err error) {
	var out struct {
		Token string `json:"token"`
	}
	in := map[string]string{"current_password": current, "new_password": replacement}
	return out.Token, c.call(ctx, http.MethodPost, "/api/auth/password", nil, in, &out)
}

// Users gives all people and Butler; for admins.
func (c *Client) Users(ctx context.Context) (Page[User], error) {
	return list[User](ctx, c, "/api/users", nil, "users")
}

// AddUser makes a person; for admins.
func (c *Client) AddUser(ctx context.Context, username, role, password string) (User, error) {
	var out User
	in := map[string]string{"username": username, "role": role, "password": password}
	return out, c.call(ctx, http.MethodPost, "/api/users", nil, in, &out)
}

// UserChange is what ChangeUser changes; nil fields stay.
type UserChange struct {
	Role     *string `json:"role,omitempty"`
	Password *string `json:"password,omitempty"`
	Disabled *bool   `json:"disabled,omitempty"`
}

// ChangeUser changes a person; for admins.
func (c *Client) ChangeUser(ctx context.Context, id int64, change UserChange) (User, error) {
	var out User
	return out, c.call(ctx, http.MethodPatch, "/api/users/"+number(id), nil, change, &out)
}

// Tokens gives the valid tokens of who is signed in: personal ones, and sign-ins.
func (c *Client) Tokens(ctx context.Context) (Page[Token], error) {
	return list[Token](ctx, c, "/api/tokens", nil, "tokens")
}

// AddToken makes a personal token that is valid for a number of days, 0 for ever. Its Secret cannot be had again.
func (c *Client) AddToken(ctx context.Context, name string, days int) (Token, error) {
	var out Token
	return out, c.call(ctx, http.MethodPost, "/api/tokens", nil, map[string]any{"name": name, "expires_in_days": days}, &out)
}

// RevokeToken ends a token of who is signed in.
func (c *Client) RevokeToken(ctx context.Context, id int64) error {
	return c.call(ctx, http.MethodDelete, "/api/tokens/"+number(id), nil, nil, nil)
}

// ThreadFilter selects threads; the zero value selects those that are not archived.
type ThreadFilter struct {
	Query    string // part of the title, without regard to case
	Archived bool   // only archived ones
	PeerID   int64
}

// Threads gives the conversations of who is signed in, newest first.
func (c *Client) Threads(ctx context.Context, f ThreadFilter) (Page[Thread], error) {
	q := url.Values{}
	if f.Query != "" {
		q.Set("q", f.Query)
	}
	if f.Archived {
		q.Set("archived", "true")
	}
	if f.PeerID != 0 {
		q.Set("peer_id", number(f.PeerID))
	}
	return list[Thread](ctx, c, "/api/chat/threads", q, "threads")
}

// NewThread makes a conversation with Butler.
func (c *Client) NewThread(ctx context.Context, title string) (Thread, error) {
	var out Thread
	return out, c.call(ctx, http.MethodPost, "/api/chat/threads", nil, map[string]any{"title": title}, &out)
}

// RenameThread gives a conversation another title.
func (c *Client) RenameThread(ctx context.Context, id int64, title string) (Thread, error) {
	var out Thread
	return out, c.call(ctx, http.MethodPatch, "/api/chat/threads/"+number(id), nil, map[string]any{"title": title}, &out)
}

// DeleteThread deletes a conversation and all that was said in it.
func (c *Client) DeleteThread(ctx context.Context, id int64) error {
	return c.call(ctx, http.MethodDelete, "/api/chat/threads/"+number(id), nil, nil, nil)
}

// Messages gives a page of a conversation, oldest first: the newest limit messages before the id before (0: of all).
func (c *Client) Messages(ctx context.Context, thread int64, before uint64, limit int) (Page[Message], error) {
	q := url.Values{}
	if before > 0 {
		q.Set("before", strconv.FormatUint(before, 10))
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return list[Message](ctx, c, "/api/chat/threads/"+number(thread)+"/messages", q, "messages")
}

// Stop asks Butler to end the answer to a message now. What it answered so far comes as a final frame.
func (c *Client) Stop(ctx context.Context, conversation int64, localID string) error {
	in := map[string]any{"local_id": localID}
	if conversation != 0 {
		in["conversation_id"] = conversation
	}
	return c.call(ctx, http.MethodPost, "/api/chat/stop", nil, in, nil)
}

// list reads a list that stands in the answer itself or under name.
func list[T any](ctx context.Context, c *Client, path string, q url.Values, name string) (Page[T], error) {
	var raw json.RawMessage
	header, err := c.exchange(ctx, http.MethodGet, path, q, nil, &raw)
	if err != nil {
		return Page[T]{}, err
	}
	page := Page[T]{Raw: raw, Stale: header.Get("X-Butler-Stale") == "true"}
	if len(raw) > 0 && raw[0] == '{' {
		var named map[string]json.RawMessage
		if err := json.Unmarshal(raw, &named); err != nil {
			return page, c.notButler(err)
		}
		page.Raw = named[name]
	}
	if err := json.Unmarshal(page.Raw, &page.Items); err != nil {
		return page, c.notButler(err)
	}
	return page, nil
}

func number(id int64) string { return strconv.FormatInt(id, 10) }
