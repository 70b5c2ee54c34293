package gateway

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// streamed gives the text of a streamed completion and its finish_reason.
func streamed(t *testing.T, body string) (text, finish string) {
	t.Helper()
	require.True(t, strings.HasSuffix(strings.TrimSpace(body), "data: [DONE]"), body)
	for line := range strings.SplitSeq(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta        struct{ Content string }
				FinishReason *string `json:"finish_reason"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(data), &chunk), data)
		for _, c := range chunk.Choices {
			text += c.Delta.Content
			if c.FinishReason != nil {
				finish = *c.FinishReason
			}
		}
	}
	return text, finish
}

// waitsFor makes a request that a turn waits for.
func waitsFor(turn chat.Turn) func(*butlerv1.Approval) {
	return func(a *butlerv1.Approval) {
		a.Waiter = &butlerv1.Waiter{Person: turn.Person, Thread: turn.Thread, Turn: turn.ID, Key: "step"}
	}
}

func TestACompletionSaysThatItWaits(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	r.brain.answerWith(func(tk *talk) {
		tk.delta("s-1", 1, "Let me look. ")
		a := f.request(bob, "K7QF", waitsFor(tk.turn))
		f.request(bob, "ZZZZ") // of another turn
		r.knows(a.GetId())     // people take longer than that to decide
		f.change(a.GetId(), func(a *butlerv1.Approval) { a.Status = approval.Approved })
		tk.delta(a.GetId(), 1, "output of the command")
		tk.delta("s-2", 1, "All ")
		tk.delta("s-2", 2, "clean.")
		tk.answer("All clean.", "s-2", 2)
	})
	body := map[string]any{"stream": true, "messages": []any{map[string]any{"role": "user", "content": "clean up"}}}
	res := r.call(bob, "POST", "/v1/chat/completions", body, header{"X-Butler-Session", "ops"})
	require.Equal(t, 200, res.status, res.text())
	text, finish := streamed(t, res.text())
	require.Equal(t, "stop", finish)
	require.Contains(t, text, "Waiting for approval K7QF: rm -rf /tmp/x on host1")
	require.NotContains(t, text, "ZZZZ")
	require.NotContains(t, text, "output of the command")
	require.True(t, strings.HasSuffix(text, "All clean."), text)
	require.Equal(t, 1, strings.Count(text, "All clean."))

	// Without a stream the answer is the answer.
	body["stream"] = false
	res = r.call(bob, "POST", "/v1/chat/completions", body, header{"X-Butler-Session", "ops"})
	require.Contains(t, res.text(), `"content":"All clean."`)
}

// After the decision the turn begins a stream of its own, which says again what was said before.
func TestACompletionSaysNothingTwice(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t)
	const whole = "Let me look.\n\nThe tool said hi."
	r.brain.answerWith(func(tk *talk) {
		tk.delta("s-1", 1, "Let ")
		tk.delta("s-1", 2, "me ")
		a := f.request(bob, "K7QF", waitsFor(tk.turn))
		r.knows(a.GetId())
		tk.delta("s-1", 3, "look.")
		tk.delta("s-1", 4, "\n\n")
		f.change(a.GetId(), func(a *butlerv1.Approval) { a.Status = approval.Approved })
		tk.abandon("s-1", 5)
		tk.delta("s-2", 1, "Let me ")
		tk.delta("s-2", 2, "look.\n\nThe tool ")
		tk.delta("s-2", 3, "said hi.")
		tk.answer(whole, "s-2", 3)
	})
	body := map[string]any{"stream": true, "messages": []any{map[string]any{"role": "user", "content": "clean up"}}}
	text, finish := streamed(t, r.call(bob, "POST", "/v1/chat/completions", body, header{"X-Butler-Session", "ops"}).text())
	require.Equal(t, "stop", finish)
	require.Equal(t, 1, strings.Count(text, "[Waiting for approval K7QF"), text)
	for _, once := range []string{"Let me look.", "The tool said hi."} {
		require.Equal(t, 1, strings.Count(text, once), text)
	}
	require.Regexp(t, `(?m)^\[Waiting for approval K7QF[^\n]*\]$`, text)
}

func TestWordsBesideACompletionStandOnTheirOwn(t *testing.T) {
	t.Parallel()
	write := func(run func(c *completionWriter)) string {
		w := httptest.NewRecorder()
		c := newCompletionWriter(w, completion{stream: true}, time.Now())
		run(c)
		require.NoError(t, c.finish("m", "", 0, 0))
		text, _ := streamed(t, w.Body.String())
		return text
	}
	type steps func(c *completionWriter) error
	say := func(s string) steps { return func(c *completionWriter) error { return c.text(s) } }
	aside := func(c *completionWriter) error { return c.aside("[w]") }
	anew := func(c *completionWriter) error { return c.anew() }
	late := func(c *completionWriter) error { return c.release() }
	answer := func(s string) steps {
		return func(c *completionWriter) error {
			rest, _ := strings.CutPrefix(s, c.sent.String())
			return c.text(rest)
		}
	}
	for name, c := range map[string]struct {
		steps []steps
		want  string
	}{
		"before anything":             {[]steps{aside, say("Done.")}, "[w]\n\nDone."},
		"within a sentence":           {[]steps{say("Let me "), aside, say("look. "), say("Done.")}, "Let me look. \n\n[w]\n\nDone."},
		"a stop that may be a point":  {[]steps{say("Version 1."), aside, say("5 is"), say(" out.\n\n")}, "Version 1.5 is out.\n\n[w]\n\n"},
		"Chinese":                     {[]steps{say("我来"), aside, say("看看。"), say("好了。")}, "我来看看。\n\n[w]\n\n好了。"},
		"it does not go on":           {[]steps{say("Let me"), aside, late, say(" look.")}, "Let me\n\n[w]\n\n look."},
		"the same again":              {[]steps{say("Let me look.\n\n"), aside, anew, say("Let me "), say("look.\n\nDone.")}, "Let me look.\n\n[w]\n\nDone."},
		"the beginning again":         {[]steps{say("Let me "), aside, anew, say("Let me look."), say(" Done.")}, "Let me \n\n[w]\n\nlook. Done."},
		"something else":              {[]steps{say("Let me look. "), aside, anew, say("Let"), say("ters.")}, "Let me look. \n\n[w]\n\n\n\nLetters."},
		"a second wait":               {[]steps{say("A. "), aside, anew, say("A. B. "), aside, anew, say("A. "), say("B. C.")}, "A. \n\n[w]\n\nB. \n\n[w]\n\nC."},
		"a second wait in the middle": {[]steps{say("A. B. "), aside, anew, say("A. "), aside, anew, say("A. B. C.")}, "A. B. \n\n[w]\n\n[w]\n\nC."},
		"the answer is all there was": {[]steps{say("A. B."), anew, answer("A. B.")}, "A. B."},
		"the answer goes on":          {[]steps{say("A. "), anew, say("A."), answer("A. B.")}, "A. B."},
	} {
		require.Equal(t, c.want, write(func(w *completionWriter) {
			for _, step := range c.steps {
				require.NoError(t, step(w), name)
			}
		}), name)
	}
}

func TestACompletionEndsAsPending(t *testing.T) {
	t.Parallel()
	r, f, bob, _ := approvalRig(t, func(d *Deps) { d.Settings.ApprovalWait = 50 * time.Millisecond })
	r.brain.answerWith(func(tk *talk) { f.request(bob, "K7QF", waitsFor(tk.turn)) })
	for _, stream := range []bool{true, false} {
		key := uuid.NewString()
		body := map[string]any{"stream": stream, "messages": []any{map[string]any{"role": "user", "content": "clean up"}}}
		for range 2 { // the same message again waits for the same
			res := r.call(bob, "POST", "/v1/chat/completions", body, header{"X-Butler-Session", "ops"}, header{"Idempotency-Key", key},
				header{"Accept-Language", "zh"})
			require.Equal(t, 200, res.status, res.text())
			if stream {
				text, finish := streamed(t, res.text())
				require.Equal(t, "stop", finish)
				require.Contains(t, text, "等待审批 K7QF")
				require.Contains(t, text, "仍在等待审批 K7QF")
			} else {
				require.Contains(t, res.text(), "仍在等待审批 K7QF")
				require.Contains(t, res.text(), `"finish_reason":"stop"`)
				require.Equal(t, "K7QF", res.header.Get("X-Butler-Approval"))
			}
		}
	}
}

func TestAnAnswerCarriesTheShell(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.brain.answerWith(func(tk *talk) {
		tk.outcome(&butlerv1.ChatOutcome{Status: chat.Answered, Result: &butlerv1.ChatReply{
			Text: "done", Attach: "on",
			Shell: &butlerv1.ShellState{Name: "butler_1", Session: "u", Host: "host1", Person: 1, Mode: "interactive", State: "running", Dir: "/srv", Program: "vim"},
		}})
	})
	c := r.admin.connect("")
	c.say("m1", "!vim")
	frames := c.until(func(f seen) bool { return f.Type == "CHAT" && f.SenderRole == "BUTLER" })
	answer := frames[len(frames)-1]
	require.JSONEq(t, `{"host":"host1","dir":"/srv","mode":"interactive","state":"running","program":"vim","name":"butler_1"}`, string(answer.Shell))
	require.Equal(t, "on", answer.Attach)
}
