package gateway

import (
	"encoding/json"
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
