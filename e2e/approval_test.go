package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// actor scripts a model that runs a command when it is asked to ("run: COMMAND"), and then tells what came of it.
func actingModel(t testing.TB) *script {
	s := startModel(t)
	s.Func(func(r *modeltest.Request) modeltest.Reply {
		text := r.LastUser()
		s.mu.Lock()
		s.calls[text] = append(s.calls[text], time.Now())
		s.mu.Unlock()
		command, ok := strings.CutPrefix(text, "run: ")
		switch {
		case !ok:
			return nil
		case r.Last().Role == "tool":
			return modeltest.Reply{modeltest.Text("It was tried. ", r.Last().Text)}
		}
		arguments, _ := json.Marshal(map[string]string{"command": command, "reasoning": "because I was asked to"})
		return modeltest.Reply{modeltest.Text("I shall do that."), modeltest.Tool("run_command", string(arguments))}
	})
	return s
}

// card is a request for approval, as HTTP gives it.
type card struct {
	ActionID string `json:"action_id"`
	Code     string `json:"code"`
	Command  string `json:"command"`
	Status   string `json:"status"`
	Digest   string `json:"digest"`
	Dir      string `json:"dir"`
	Failure  string `json:"failure"`
	Outcome  *struct {
		ExitStatus int    `json:"exit_status"`
		Output     string `json:"output"`
	} `json:"outcome"`
}

// cards lists requests; an error means that there was no answer.
func cards(c caller, status string) ([]card, error) {
	var out []card
	code, _, err := c.do(context.Background(), "GET", "/api/approvals?limit=200&status="+status, nil, &out)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d", code)
	}
	return out, err
}

// pending waits for a request for the command.
func (s *site) pending(p *person, command string) card {
	s.t.Helper()
	var found card
	eventually(s.t, 30*time.Second, "a request to approve "+command, func() bool {
		all, err := cards(s.as(p), "pending")
		for _, c := range all {
			if c.Command == command {
				found = c
				return err == nil
			}
		}
		return false
	})
	return found
}

func (s *site) decide(p *person, id string, approved bool, reason string) (int, string) {
	s.t.Helper()
	var text string
	code, _, err := s.as(p).do(context.Background(), "POST", "/api/approvals/"+id+"/decision",
		map[string]any{"approved": approved, "reason": reason}, &text)
	if err != nil {
		s.t.Fatal(err)
	}
	return code, text
}

// actingUp is a `butler up` whose person-1 may use the shell. Its shells end with the test.
func actingUp(t testing.TB) *upSite {
	dir := shortDir(t)
	up := newUpIn(t, dir, actingModel(t), "BUTLER_ALLOWED_USERS=person-1")
	up.run()
	up.signIn()
	return up
}

// endShells ends the shells that a shell-runner left in its folder, as they are made to be left.
func endShells(t testing.TB, dir string) {
	h, err := tmux.Open(tmux.Config{Dir: dir})
	if err != nil {
		t.Error(err)
		return
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := h.Recover(ctx); err != nil {
		t.Error(err)
	}
	for _, s := range h.Sessions() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

// workFolder is a folder in which commands write.
func workFolder(t testing.TB) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func lines(t testing.TB, file string) []string {
	data, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

func TestApprovals(t *testing.T) {
	t.Parallel()
	up := actingUp(t)
	work := workFolder(t)
	log := filepath.Join(work, "log")
	p := up.people(1)[0]
	d := up.connect(p)

	ask := func(id, command string) { d.say(0, id, "run: "+command) }
	final := func(id string) string {
		d.until(60*time.Second, "the answer to "+id, func() bool { return d.sent[id].final != nil })
		return d.sent[id].final.Payload
	}

	t.Log("approved by an administrator")
	ask("a1", "echo one >>"+log)
	c := up.pending(up.admin, "echo one >>"+log)
	if code, text := up.decide(p, c.ActionID, true, ""); code != http.StatusForbidden {
		t.Fatalf("who asked is no administrator: %d %s", code, text)
	}
	if code, text := up.decide(up.admin, c.Code, true, ""); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	if got := final("a1"); !strings.Contains(got, "I shall do that.") || !strings.Contains(got, "It was tried.") {
		t.Fatalf("%q", got)
	}
	if code, text := up.decide(up.admin, c.ActionID, false, ""); code != http.StatusConflict || !strings.Contains(text, "already") {
		t.Fatalf("%d %s", code, text)
	}
	if code, _ := up.decide(up.admin, "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57", true, ""); code != http.StatusNotFound {
		t.Fatal(code)
	}

	t.Log("denied with a reason, which the model reads")
	ask("a2", "echo two >>"+log)
	up.decide(up.admin, up.pending(up.admin, "echo two >>"+log).ActionID, false, "not on a Friday")
	if got := final("a2"); !strings.Contains(got, "not on a Friday") {
		t.Fatalf("%q", got)
	}

	t.Log("harmless commands run by themselves, hard-line ones never")
	ask("a3", "echo hello from the shell")
	if got := final("a3"); !strings.Contains(got, "hello from the shell") {
		t.Fatalf("%q", got)
	}
	ask("a4", "rm -rf /")
	if got := final("a4"); !strings.Contains(strings.ToLower(got), "refuse") {
		t.Fatalf("%q", got)
	}

	t.Log("typed by the person, confirmed by a word of the person")
	d.say(0, "s1", "/shell")
	final("s1")
	d.say(0, "s2", "!echo three >>"+log)
	up.pending(p, "echo three >>"+log)
	if code, text := up.decide(up.admin, up.pending(p, "echo three >>"+log).ActionID, true, ""); code != http.StatusForbidden {
		t.Fatalf("what a person typed is theirs to confirm: %d %s", code, text)
	}
	d.say(0, "s3", "确认")
	final("s3")
	final("s2")

	if got := strings.Join(lines(t, log), " "); got != "one three" {
		t.Fatalf("the commands that ran: %q", got)
	}
	up.auditHolds(10)
}

// What answers a password prompt is in no log, no file and no frame, and reaches the program.
func TestPasswordsAreNotLogged(t *testing.T) {
	t.Parallel()
	up := actingUp(t)
	d := up.connect(up.people(1)[0])
	d.say(0, "s1", "/shell")
	d.until(30*time.Second, "a shell", func() bool { return d.sent["s1"].final != nil })
	const secret = "open-sesame-4711"
	for _, id := range []string{"one", "two"} {
		d.say(0, id, `!read -rs -p "Password: " P; echo "length ${#P}"`)
		d.until(30*time.Second, "word that a password is asked for", func() bool {
			for _, f := range d.frames {
				if f.Type == "CHAT_STREAM" && f.ReplyToLocalID == id && strings.Contains(f.Payload, "password") {
					return true
				}
			}
			return false
		})
		d.say(0, id+"-answer", secret)
		d.until(30*time.Second, "the answers", func() bool { return d.sent[id].final != nil && d.sent[id+"-answer"].final != nil })
		if got := d.sent[id].final.Payload; !strings.Contains(got, fmt.Sprint("length ", len(secret))) {
			t.Fatalf("%q", got)
		}
		if got := d.sent[id+"-answer"].final.Payload; !strings.Contains(got, "kept nowhere") {
			t.Fatalf("%q", got)
		}
		if id == "one" { // a Butler that has just started knows of no prompt, and hears of the next
			d.halt(true)
			up.kill()
			up.run()
			d.halt(false)
		}
	}
	for _, f := range d.seen() {
		if strings.Contains(fmt.Sprint(f), secret) {
			t.Errorf("a frame has it: %s", f)
		}
	}
	up.stop()
	err := filepath.WalkDir(up.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil //nolint:nilerr // a file that went meanwhile
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), secret) {
			t.Errorf("%s has it", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// auditHolds verifies the audit chain, which covers at least so many events.
func (s *site) auditHolds(least int) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, "the audit chain is whole", func() bool {
		var text string
		code, _, err := s.as(s.admin).do(context.Background(), "GET", "/api/audit/verify", nil, &text)
		if err != nil || code != http.StatusOK {
			return false
		}
		var last struct {
			Done    bool
			Problem string
			Events  json.Number
		}
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			last.Problem = ""
			if json.Unmarshal([]byte(line), &last) != nil {
				return false
			}
			if last.Problem != "" {
				s.t.Fatalf("the audit chain: %s", last.Problem)
			}
		}
		n, _ := last.Events.Int64()
		return last.Done && n >= int64(least)
	})
}

// deeds is a person who has commands run while things break, and an administrator who approves whatever there is.
type deeds struct {
	site   *site
	device *device
	log    string
	quit   chan struct{}
	done   sync.WaitGroup
	n      int
}

func (s *site) actOn(p *person, log string) *deeds {
	d := &deeds{site: s, device: s.connect(p), log: log, quit: make(chan struct{})}
	d.done.Go(func() {
		for d.n = 1; ; d.n++ {
			id := fmt.Sprintf("c%d", d.n)
			d.device.say(0, id, fmt.Sprintf("run: echo %s >>%s", id, log))
			if !d.device.wait(d.quit, func() bool { return d.device.open() == 0 }) {
				return
			}
		}
	})
	d.done.Go(func() {
		for {
			all, err := cards(s.as(s.admin), "pending")
			if err == nil {
				for _, c := range all {
					_, _, _ = s.as(s.admin).do(context.Background(), "POST", "/api/approvals/"+c.ActionID+"/decision",
						map[string]any{"approved": true}, nil)
				}
			}
			select {
			case <-d.quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return d
}

// end waits for the last answer and counts: every command ran at most once, and exactly once when it is told that it did.
func (d *deeds) end() {
	t := d.site.t
	t.Helper()
	d.device.until(2*time.Minute, "all answers", func() bool { return d.device.open() == 0 })
	close(d.quit)
	d.done.Wait()
	d.device.answered(2 * time.Minute)
	ran := map[string]int{}
	for _, id := range lines(t, d.log) {
		ran[id]++
	}
	unknown := 0
	d.device.mu.Lock()
	defer d.device.mu.Unlock()
	for _, id := range d.device.order {
		m := d.device.sent[id]
		text := strings.ToLower(m.final.Payload)
		switch {
		case ran[id] > 1:
			t.Errorf("%s ran %d times", id, ran[id])
		case strings.Contains(text, "exit status: 0") || strings.Contains(text, "exit status 0"):
			if ran[id] != 1 {
				t.Errorf("%s is told to have run, and did %d times: %s", id, ran[id], m.final.Payload)
			}
		case strings.Contains(text, "unknown") || strings.Contains(text, "may or may not"):
			unknown++
		default:
			t.Errorf("%s ended with: %s", id, m.final.Payload)
		}
	}
	t.Logf("%d commands asked for, %d ran, of %d nobody can tell", len(d.device.order), len(ran), unknown)
}

// kill -9 of the only process at random moments between request, decision, execution and answer.
func TestKillUpDuringApprovals(t *testing.T) {
	t.Parallel()
	chance := random(t)
	up := actingUp(t)
	acts := up.actOn(up.people(1)[0], filepath.Join(workFolder(t), "log"))
	for range sample(5, 40) {
		time.Sleep(time.Duration(chance.Int64N(int64(1500 * time.Millisecond)))) // the random moment is the point
		up.kill()
		up.run()
	}
	acts.end()
	up.auditHolds(10)
}

// The same with each service of the distributed form in turn.
func TestKillServicesDuringApprovals(t *testing.T) {
	t.Parallel()
	chance := random(t)
	c := startCluster(t, actingModel(t), storagetest.Shared(t), "BUTLER_ALLOWED_USERS=person-1")
	acts := c.actOn(c.people(1)[0], filepath.Join(workFolder(t), "log"))
	for n := range sample(1, 8) {
		victims := c.services()
		chance.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		for _, p := range victims {
			time.Sleep(time.Duration(chance.Int64N(int64(800 * time.Millisecond))))
			p.kill()
			if n%2 == 1 {
				time.Sleep(time.Duration(chance.Int64N(int64(500 * time.Millisecond))))
			}
			p.run()
		}
	}
	acts.end()
	// Whatever the order in which they came back: what may run by itself does.
	d := acts.device
	d.say(0, "allowed", "run: echo harmless")
	d.until(60*time.Second, "an answer", func() bool { return d.sent["allowed"].final != nil })
	if got := d.sent["allowed"].final.Payload; !strings.Contains(got, "harmless") || !strings.Contains(got, "It was tried.") {
		t.Errorf("%q", got)
	}
	c.auditHolds(5)
}
