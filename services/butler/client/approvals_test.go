package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

const actionID = "6f1c2c52-3ad1-4b53-8f0e-9d6a6c1d7f57"

// seenApprovals records progress with approvals.
type seenApprovals struct {
	seen
	approvals []Approval
	output    string
}

func (s *seenApprovals) Approval(a Approval)    { s.approvals = append(s.approvals, a) }
func (s *seenApprovals) Output(_, piece string) { s.output += piece }

func TestAskTellsOfApprovalsAndOutput(t *testing.T) {
	t.Parallel()
	s := serve(t, "[]", func(c *scripted) {
		c.read()
		card := func(typ, status, replyTo string) {
			c.send(`{"type":%q,"action_id":%q,"status":%q,"payload":{"action_id":%q,"code":"K7QF","status":%q,"command":"reboot","reply_to_local_id":%q,"conversation_id":7}}`,
				typ, actionID, status, actionID, status, replyTo)
		}
		card("AUTH_REQUEST", "PENDING", "m1")
		card("AUTH_REQUEST", "PENDING", "another")
		card("AUTH_STATUS_UPDATE", "APPROVED", "m1")
		c.send(`{"type":"AUTH_STATUS_UPDATE","payload":"nonsense"}`)
		c.send(`{"type":"CHAT_STREAM","conversation_id":7,"stream_id":%q,"reply_to_local_id":"m1","payload":"out"}`, actionID)
		c.send(`{"type":"CHAT_STREAM","conversation_id":7,"stream_id":"m1-a-1","reply_to_local_id":"m1","payload":"Done."}`)
		c.send(`{"type":"CHAT","conversation_id":7,"id":9,"reply_to_local_id":"m1","status":"answered","stream_id":"m1-a-1","payload":"Done."}`)
		c.hold()
	})
	var mu sync.Mutex
	var news []string
	f := s.feed(FeedOptions{Approval: func(a Approval, raw json.RawMessage) {
		mu.Lock()
		defer mu.Unlock()
		news = append(news, a.Status)
		assert.True(t, json.Valid(raw))
	}})
	p := &seenApprovals{}
	answer, err := f.Ask(t.Context(), Question{LocalID: "m1", Text: "reboot it"}, p)
	require.NoError(t, err)
	assert.Equal(t, "Done.", answer.Text)
	assert.Equal(t, "Done.", p.text)
	assert.Zero(t, p.restarts, "the output of a command is no answer")
	assert.Equal(t, "out", p.output)
	require.Len(t, p.approvals, 2, "only what this answer waits for")
	assert.True(t, p.approvals[0].Pending())
	assert.Equal(t, "K7QF", p.approvals[0].Code)
	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, news, 3)
}

func TestVerifyingTheAuditChain(t *testing.T) {
	t.Parallel()
	body := ""
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer srv.Close()
	c, err := New(srv.URL, "token", "test")
	require.NoError(t, err)
	defer c.Close()
	check := func() (lines []AuditCheck, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err = c.VerifyAudit(ctx, func(line AuditCheck, _ json.RawMessage) { lines = append(lines, line) })
		return lines, err
	}
	body = `{"links":1}` + "\n" + `{"links":2,"problem":"changed","n":2}` + "\n" + `{"links":2,"done":true}` + "\n"
	lines, err := check()
	require.NoError(t, err)
	require.Len(t, lines, 3)
	assert.Equal(t, "changed", lines[1].Problem)
	assert.True(t, lines[2].Done)
	for _, broken := range []string{`{"links":1}`, `{"links":1}` + "\n" + `{"error":"the check broke off","code":"unavailable"}`} {
		body = broken
		_, err = check()
		assert.Equal(t, fault.Unavailable, fault.CodeOf(err), broken)
	}
	status, body = http.StatusForbidden, `{"error":"only an administrator may do this","code":"forbidden"}`
	_, err = check()
	assert.Equal(t, fault.Forbidden, fault.CodeOf(err))
}

func FuzzDecodeFrame(f *testing.F) {
	f.Add([]byte(`{"type":"AUTH_REQUEST","payload":{"action_id":"x","decisions":[{}]}}`))
	f.Add([]byte(`{"type":"AUTH_REQUEST","payload":null}`))
	f.Add([]byte(`{"type":"CHAT","payload":"x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		frame, err := decodeFrame(data)
		if err == nil && (frame.Type == frameAuthRequest || frame.Type == frameAuthStatus) && frame.Approval == nil {
			t.Fatal("a request without one")
		}
	})
}
