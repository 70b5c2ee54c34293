package gateway

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

const (
	// shellsWithin bounds how long a shell-runner may take to answer, closeWithin to close a shell: what runs in it is
	// given time to end.
	shellsWithin = 5 * time.Second
	closeWithin  = 20 * time.Second
)

// shellJSON is a shell as it stands.
type shellJSON struct {
	Host     string        `json:"host"`
	Name     string        `json:"name"`
	Person   personJSON    `json:"person"`
	Mode     string        `json:"mode"`  // nl or interactive
	State    string        `json:"state"` // idle, running, blocked or unknown
	Dir      string        `json:"dir"`
	Program  string        `json:"program,omitempty"` // in the foreground, when it is not the shell
	Password bool          `json:"password"`          // one is asked for
	ActiveAt *time.Time    `json:"active_at,omitempty"`
	Commands []runningJSON `json:"commands"` // that run in it, the oldest first
}

type personJSON struct {
	ID   int64  `json:"id"`
	Name string `json:"name,omitempty"`
}

type runningJSON struct {
	ActionID string     `json:"action_id"`
	Command  string     `json:"command"`
	BeganAt  *time.Time `json:"began_at,omitempty"`
}

// errNoShellRunner says that hosts do not answer.
func errNoShellRunner(language string, err error) error {
	e := fault.Wrap(err, fault.Unavailable, "%s", say(language,
		"the shells do not answer now; try again in a moment", "shell 服务暂时没有响应，请稍后再试"))
	e.RetryAfter = time.Second
	return e
}

// askHosts asks every shell-runner at the same time. It gives those that did not answer, in order; an error when none did.
func (s *Service) askHosts(ctx context.Context, language string, ask func(context.Context, butlerv1.ShellServiceClient) error) (silent []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, shellsWithin)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed []error
	silent = []string{}
	for host, c := range s.shells {
		wg.Go(func() {
			if err := ask(ctx, c); err != nil {
				mu.Lock()
				defer mu.Unlock()
				silent, failed = append(silent, host), append(failed, err)
			}
		})
	}
	wg.Wait()
	slices.Sort(silent)
	if len(silent) > 0 && len(silent) == len(s.shells) {
		return silent, errNoShellRunner(language, errors.Join(failed...))
	}
	return silent, nil
}

// whose reads the query's person: the caller's own when there is none. Others are for administrators.
func whose(r *http.Request, who *principal) (int64, error) {
	text := r.URL.Query().Get("person")
	if text == "" {
		return who.id(), nil
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 {
		return 0, fault.New(fault.Invalid, "person is the id of somebody")
	}
	if id != who.id() && !who.admin() {
		return 0, errNotAdmin
	}
	return id, nil
}

// listShells serves GET /api/shells: the caller's, or for administrators those of a person or all.
func (s *Service) listShells(w http.ResponseWriter, r *http.Request, who *principal) error {
	person, err := whose(r, who)
	if err != nil {
		return err
	}
	switch r.URL.Query().Get("all") {
	case "", "false":
	case "true":
		if !who.admin() {
			return errNotAdmin
		}
		person = 0
	default:
		return fault.New(fault.Invalid, "all is true or false")
	}
	names := map[int64]string{}
	people, err := s.roster.get(r.Context())
	if err != nil { // their ids will do
		s.log.DebugContext(r.Context(), "the names of those who have shells cannot be read now", "error", err)
	}
	for _, p := range people {
		names[p.GetId()] = p.GetName()
	}
	var mu sync.Mutex
	out := []shellJSON{}
	silent, err := s.askHosts(r.Context(), s.language(r, ""), func(ctx context.Context, c butlerv1.ShellServiceClient) error {
		res, err := c.ListShells(ctx, &butlerv1.ListShellsRequest{Person: person})
		mu.Lock()
		defer mu.Unlock()
		for _, st := range res.GetShells() {
			if person == 0 || st.GetPerson() == person { // whatever the other side says
				out = append(out, shellOfState(st, names))
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(out, func(a, b shellJSON) int {
		return cmp.Or(cmp.Compare(a.Person.ID, b.Person.ID), cmp.Compare(a.Host, b.Host))
	})
	writeJSON(w, http.StatusOK, struct {
		Shells []shellJSON `json:"shells"`
		Silent []string    `json:"unreachable"`
	}{out, silent})
	return nil
}

func shellOfState(st *butlerv1.ShellState, names map[int64]string) shellJSON {
	out := shellJSON{
		Host: st.GetHost(), Name: st.GetName(), Person: personJSON{st.GetPerson(), names[st.GetPerson()]},
		Mode: st.GetMode(), State: st.GetState(), Dir: st.GetDir(), Program: st.GetProgram(), Password: st.GetPassword(),
		ActiveAt: timeOf(st.GetActiveAt()), Commands: []runningJSON{},
	}
	for _, c := range st.GetCommands() {
		out.Commands = append(out.Commands, runningJSON{c.GetApprovalId(), c.GetCommand(), timeOf(c.GetBeganAt())})
	}
	return out
}

// closeShell serves DELETE /api/shells/{host}/{person}. One that is closed already is closed.
func (s *Service) closeShell(w http.ResponseWriter, r *http.Request, who *principal) error {
	language := s.language(r, "")
	person, err := pathID(r, "person")
	if err != nil {
		return err
	}
	host := r.PathValue("host")
	client := s.shells[host]
	if person != who.id() && !who.admin() || client == nil {
		if hosts := slices.Sorted(maps.Keys(s.shells)); client == nil && len(hosts) > 0 && who.admin() {
			return fault.New(fault.NotFound, say(language, "there are no shells on %q; the hosts are %v", "主机 %q 上没有 shell；可用主机：%v"), host, hosts)
		}
		return fault.New(fault.NotFound, "%s", say(language, "there is no such shell", "没有这个 shell"))
	}
	ctx, cancel := context.WithTimeout(r.Context(), closeWithin)
	defer cancel()
	if _, err := client.CloseShell(ctx, &butlerv1.CloseShellRequest{Person: person, By: who.protoActor()}); err != nil {
		if code := fault.CodeOf(err); code == fault.Unavailable || code == fault.Internal {
			return errNoShellRunner(language, err)
		}
		return err
	}
	s.log.InfoContext(r.Context(), "a shell was closed", "by", who.id(), "person", person, "host", host)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// commandJSON is an entry of the log of commands.
type commandJSON struct {
	ID         int64      `json:"id"`
	ActionID   string     `json:"action_id,omitempty"` // none for what was typed into a program
	Command    string     `json:"command"`
	Host       string     `json:"host"`
	Dir        string     `json:"dir"`
	At         *time.Time `json:"executed_at,omitempty"`
	Status     string     `json:"status"`      // ended, refused or unknown
	ExitStatus *int32     `json:"exit_status"` // null: not known
	DurationMS int64      `json:"duration_ms"`
	Mode       string     `json:"mode"`
	Dangerous  bool       `json:"dangerous"`
	Approved   bool       `json:"approved"`
	Approver   string     `json:"approver,omitempty"`
	Channel    string     `json:"channel,omitempty"`
	Truncated  bool       `json:"truncated"` // its outcome has not all of the output
}

// listCommands serves GET /api/shell/commands. Any shell-runner has the log of all, but while each has a database of its
// own; so all are asked.
func (s *Service) listCommands(w http.ResponseWriter, r *http.Request, who *principal) error {
	person, err := whose(r, who)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	limit, err := queryInt(q.Get("limit"), 50, 1, 200, "limit")
	if err != nil {
		return err
	}
	before, err := queryInt(q.Get("before"), 0, 1, 0, "before")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var found []*butlerv1.LoggedCommand
	more := false
	silent, err := s.askHosts(r.Context(), s.language(r, ""), func(ctx context.Context, c butlerv1.ShellServiceClient) error {
		res, err := c.ListCommands(ctx, &butlerv1.ListCommandsRequest{Person: person, Limit: int32(limit), Before: int64(before)}) //nolint:gosec // at most 200
		mu.Lock()
		defer mu.Unlock()
		found, more = append(found, res.GetCommands()...), more || res.GetMore()
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b *butlerv1.LoggedCommand) int { return cmp.Compare(b.GetId(), a.GetId()) })
	found = slices.CompactFunc(found, func(a, b *butlerv1.LoggedCommand) bool { return a.GetId() == b.GetId() })
	if len(found) > limit {
		found, more = found[:limit], true
	}
	out := make([]commandJSON, 0, len(found))
	for _, c := range found {
		if c.GetLogged().GetPerson().GetId() == person {
			out = append(out, commandOf(c))
		}
	}
	if len(silent) > 0 {
		w.Header().Set("X-Butler-Stale", "true")
	}
	if more && len(found) > 0 {
		w.Header().Set("X-Next-Before", strconv.FormatInt(found[len(found)-1].GetId(), 10))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func commandOf(c *butlerv1.LoggedCommand) commandJSON {
	e := c.GetLogged()
	o := e.GetOutcome()
	out := commandJSON{
		ID: c.GetId(), ActionID: e.GetApprovalId(), Command: e.GetCommand(), Host: c.GetHost(), Dir: e.GetDir(), At: timeOf(e.GetExecutedAt()),
		Status: e.GetStatus(), DurationMS: o.GetDurationMs(), Mode: e.GetMode(), Dangerous: e.GetDangerous(), Approved: e.GetApproved(),
		Approver: e.GetApprover(), Channel: e.GetChannel(), Truncated: o.GetTruncated(),
	}
	if o.GetStatusKnown() && e.GetStatus() == approval.Ended {
		out.ExitStatus = new(o.GetExitStatus())
	}
	return out
}
