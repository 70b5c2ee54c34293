package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// Shell is a person's shell on a host.
type Shell struct {
	Host     string           `json:"host"`
	Name     string           `json:"name"`
	Person   Somebody         `json:"person"`
	Mode     string           `json:"mode"`  // nl or interactive
	State    string           `json:"state"` // idle, running, blocked or unknown
	Dir      string           `json:"dir"`
	Program  string           `json:"program"` // in the foreground, when it is not the shell
	Password bool             `json:"password"`
	ActiveAt *time.Time       `json:"active_at"`
	Commands []RunningCommand `json:"commands"`
}

// RunningCommand is a command that has not ended.
type RunningCommand struct {
	ActionID string     `json:"action_id"`
	Command  string     `json:"command"`
	BeganAt  *time.Time `json:"began_at"`
}

// ShellList is what the hosts that answered told.
type ShellList struct {
	Shells      []Shell  `json:"shells"`
	Unreachable []string `json:"unreachable"` // hosts whose shells are not known now
}

// Shells gives the shells of a person, 0 for who is signed in; with all, for admins, everybody's. raw is the server's own
// JSON.
func (c *Client) Shells(ctx context.Context, person int64, all bool) (out ShellList, raw json.RawMessage, err error) {
	q := url.Values{}
	if all {
		q.Set("all", "true")
	} else if person != 0 {
		q.Set("person", number(person))
	}
	if err := c.call(ctx, http.MethodGet, "/api/shells", q, nil, &raw); err != nil {
		return out, nil, err
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, nil, c.notButler(err)
	}
	return out, raw, nil
}

// CloseShell closes a person's shell on a host. That it is closed already is no error.
func (c *Client) CloseShell(ctx context.Context, host string, person int64) error {
	return c.call(ctx, http.MethodDelete, "/api/shells/"+url.PathEscape(host)+"/"+number(person), nil, nil, nil)
}

// Command is an entry of the log of commands.
type Command struct {
	ID         int64      `json:"id"`
	ActionID   string     `json:"action_id"` // empty for what was typed into a program
	Command    string     `json:"command"`
	Host       string     `json:"host"`
	Dir        string     `json:"dir"`
	At         *time.Time `json:"executed_at"`
	Status     string     `json:"status"`      // ended, refused or unknown
	ExitStatus *int32     `json:"exit_status"` // nil: not known
	DurationMS int64      `json:"duration_ms"`
	Truncated  bool       `json:"truncated"`
}

// CommandFilter selects entries; the zero value selects the newest 50 of who is signed in.
type CommandFilter struct {
	Person int64 // of this person; for admins
	Limit  int   // at most so many, at most 200
	Before int64 // entries before the one with this id
}

// Commands gives what was executed in a person's shells, newest first.
func (c *Client) Commands(ctx context.Context, f CommandFilter) (Page[Command], error) {
	q := url.Values{}
	for name, n := range map[string]int64{"person": f.Person, "limit": int64(f.Limit), "before": f.Before} {
		if n > 0 {
			q.Set(name, number(n))
		}
	}
	return list[Command](ctx, c, "/api/shell/commands", q, "commands")
}

// CommandOutput writes all that a command printed to w, as it comes. An error after some was written says that it is not
// all.
func (c *Client) CommandOutput(ctx context.Context, actionID string, w io.Writer) error {
	body, err := c.stream(ctx, "/api/shell/commands", url.PathEscape(actionID), "output")
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	in := &reading{from: body}
	_, err = io.Copy(w, in)
	if in.err != nil && ctx.Err() == nil {
		return fault.Wrap(in.err, fault.Unavailable, "%s broke off: this is not all of the output; ask again", c.Server())
	}
	return err
}

// reading remembers how reading failed, which io.Copy does not tell from how writing did.
type reading struct {
	from io.Reader
	err  error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // as io.Reader has it
		r.err = err
	}
	return n, err
}
