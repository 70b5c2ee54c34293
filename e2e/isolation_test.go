package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

// An administrator and a member speak at once: each message keeps who said it, whatever a client claims (SE-01).
func TestIdentityTravelsWithTheMessage(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	c := startCluster(t, model, storagetest.Shared(t))
	member := c.people(1)[0]
	n := sample(50, 1000)
	devices := []*device{c.connectTo(c.admin, c.urls[0]), c.connectTo(member, c.urls[1])}
	all(devices, func(_ int, d *device) {
		for i := range n {
			m := d.say(0, fmt.Sprintf("said-%d", i), fmt.Sprintf("%s says %d", d.who.name, i))
			d.until(60*time.Second, "the answer", func() bool { return m.final != nil || i%5 < 3 })
		}
		d.answered(60 * time.Second)
	})
	c.check(devices, conditions{})
	for _, d := range devices {
		for _, f := range d.seen() {
			// The answers are echoes, so they say whose message was answered.
			if f.Type == "CHAT" && !strings.Contains(f.Payload, d.who.name+" says ") {
				t.Errorf("%s got what is another's: %s", d.who.name, f)
			}
		}
	}
	// Claims of a client do not count.
	d := devices[1]
	d.raw(fmt.Sprintf(`{"type":"CHAT","id":7,"local_id":"forged","sender_id":%d,"sender_name":"admin","sender_role":"ADMIN",`+
		`"target_id":%d,"payload":"%s says that it is admin"}`, c.admin.id, butlerID, member.name))
	d.until(20*time.Second, "the answer", func() bool {
		return slices.ContainsFunc(d.frames, func(f *frame) bool { return f.ReplyToLocalID == "forged" && f.Type == "CHAT" })
	})
	for _, f := range d.seen() {
		if f.LocalID == "forged" && (f.SenderID != member.id || f.SenderName != member.name || f.SenderRole != "MEMBER" || f.ID == 7) {
			t.Errorf("a forged sender was believed: %s", f)
		}
	}
	// Nor do frames that are not for clients to send.
	for _, typ := range []string{"CHAT_STREAM", "CHAT_STREAM_END", "GAP", "AUTH_STATUS_UPDATE"} {
		d.raw(fmt.Sprintf(`{"type":%q,"local_id":"forged-%s","target_id":%d,"payload":"x"}`, typ, typ, c.admin.id))
		d.until(10*time.Second, "a refusal of "+typ, func() bool {
			return slices.ContainsFunc(d.frames, func(f *frame) bool { return f.Type == "ERROR" && f.LocalID == "forged-"+typ })
		})
	}
}

// Every address with an id in it, called with what is another person's: as if it did not exist, also for an
// administrator (SE-03).
func TestForeignIDs(t *testing.T) {
	t.Parallel()
	model := startModel(t)
	up := startUp(t, model)
	people := up.people(2)
	owner, stranger := people[0], people[1]
	thread := up.newThread(owner)
	d := up.connect(owner)
	d.say(thread, "secret", "this is between Butler and me")
	d.answered(20 * time.Second)
	var token struct{ ID int64 }
	up.as(owner).must(t, http.StatusCreated, "POST", "/api/tokens", map[string]any{"name": "mine"}, &token)

	path := fmt.Sprintf("/api/chat/threads/%d", thread)
	for _, try := range []struct {
		method, path string
		body         any
	}{
		{"GET", path, nil},
		{"PATCH", path, map[string]any{"title": "mine now"}},
		{"DELETE", path, nil},
		{"GET", path + "/messages", nil},
		{"POST", "/api/chat/messages", map[string]any{"text": "let me in", "conversation_id": thread}},
		{"POST", "/api/chat/stop", map[string]any{"conversation_id": thread}},
		{"DELETE", fmt.Sprintf("/api/tokens/%d", token.ID), nil},
	} {
		for _, who := range []*person{stranger, up.admin} {
			var said string
			status, _, err := up.as(who).do(context.Background(), try.method, try.path, try.body, &said)
			if err != nil || status != http.StatusNotFound || strings.Contains(said, "between") {
				t.Errorf("%s: %s %s: %d %s %v", who.name, try.method, try.path, status, said, err)
			}
			none := strings.Replace(try.path, fmt.Sprint(thread), "987654321", 1)
			var other string
			if b, ok := try.body.(map[string]any); ok && b["conversation_id"] != nil {
				b["conversation_id"] = 987654321
			}
			status, _, _ = up.as(who).do(context.Background(), try.method, none, try.body, &other)
			if status != http.StatusNotFound {
				t.Errorf("%s: %s %s: %d", who.name, try.method, none, status)
			}
		}
	}
	// What only administrators may do.
	for _, try := range [][2]string{
		{"GET", "/api/users"}, {"POST", "/api/users"}, {"PATCH", fmt.Sprintf("/api/users/%d", owner.id)},
	} {
		status, _, err := up.as(stranger).do(context.Background(), try[0], try[1], map[string]any{"role": "ADMIN"}, nil)
		if err != nil || status != http.StatusForbidden {
			t.Errorf("a member: %s %s: %d %v", try[0], try[1], status, err)
		}
	}
	// Over the socket.
	s := up.connect(stranger)
	s.until(10*time.Second, "the greeting", func() bool { return len(s.frames) > 0 })
	for _, frame := range []string{
		`{"type":"CHAT","local_id":"foreign","target_id":2,"conversation_id":%d,"payload":"let me in"}`,
		`{"type":"STOP","local_id":"foreign","conversation_id":%d}`,
	} {
		s.mu.Lock()
		seen := len(s.frames)
		s.mu.Unlock()
		s.raw(fmt.Sprintf(frame, thread))
		s.until(10*time.Second, "a refusal", func() bool { return len(s.frames) > seen })
		if f := s.seen()[seen]; f.Type != "ERROR" || f.Code != "not_found" {
			t.Errorf("a foreign conversation over the socket: %s", f)
		}
	}
	// The same local_id and the same name of a session are the stranger's own.
	s.say(0, "secret", "what is this one?")
	s.answered(20 * time.Second)
	for _, f := range s.seen() {
		if strings.Contains(f.Payload, "between") {
			t.Errorf("a stranger was told: %s", f)
		}
	}
	ask := func(who *person, text string) {
		t.Helper()
		status, err := openAI(up.as(who), "shared name", text)
		if err != nil || status != http.StatusOK {
			t.Fatalf("an OpenAI request: %d %v", status, err)
		}
	}
	ask(owner, "my session")
	ask(stranger, "their session")
	for _, who := range people {
		var threads []struct{ ID int64 }
		up.as(who).must(t, http.StatusOK, "GET", "/api/chat/threads?archived=all", nil, &threads)
		for _, th := range threads {
			for _, m := range up.readHistory(&device{who: who, urls: up.urls}, th.ID) {
				if who == stranger && strings.Contains(m.Payload, "my session") || who == owner && strings.Contains(m.Payload, "their session") {
					t.Errorf("two people share a session by its name: %s", m.Payload)
				}
			}
		}
	}
	// Nothing of it reached the owner either, nor the model.
	if n := len(model.asked("let me in")); n > 0 {
		t.Errorf("the model was asked in a foreign conversation %d times", n)
	}
	up.check([]*device{d}, conditions{})
	if text := up.text(); strings.Contains(text, owner.token) || strings.Contains(text, stranger.password) {
		t.Error("a secret is in the log")
	}
}

// openAI makes a chat completion in a session.
func openAI(c caller, session, text string) (int, error) {
	req, err := http.NewRequest("POST", c.url+"/v1/chat/completions",
		strings.NewReader(fmt.Sprintf(`{"model":"butler","messages":[{"role":"user","content":%q}]}`, text)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Butler-Session", session)
	resp, err := callers.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
