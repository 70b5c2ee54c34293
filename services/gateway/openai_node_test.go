package gateway

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// The official client for Node, as it comes from the registry, works against Butler.
func TestOfficialOpenAIClientForNode(t *testing.T) {
	t.Parallel()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Fatal("npm is missing: this test needs Node and npm (on Debian: apt-get install nodejs npm)")
	}
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc", "client.mjs"} {
		data, err := os.ReadFile(filepath.Join("testdata", "openai", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--prefer-offline")
	install.Dir = dir
	out, err := install.CombinedOutput()
	require.NoError(t, err, "npm ci: %s", out)

	r := newRig(t)
	r.brain.complete = func(req *butlerv1.CompleteRequest, send func(*butlerv1.CompleteResponse) error) error {
		failed := &butlerv1.CompleteResponse{Done: true, ErrorCode: "model_unavailable", ErrorMessage: "The model does not answer."}
		text := req.GetMessages()[len(req.GetMessages())-1].GetText()
		switch text {
		case "fail at once":
			return send(failed)
		case "break off":
			return errors.Join(send(&butlerv1.CompleteResponse{Text: "half an ans"}), send(failed))
		}
		return errors.Join(send(&butlerv1.CompleteResponse{Text: "You said: "}), send(&butlerv1.CompleteResponse{Text: text}),
			send(&butlerv1.CompleteResponse{
				Done: true, Model: "fake", FinishReason: "stop", Usage: &butlerv1.Usage{PromptTokens: 7, CompletionTokens: 3},
			}))
	}
	var thread struct{ ID int64 }
	r.call(r.admin, "POST", "/api/chat/threads", map[string]any{"title": "for node"}).into(&thread)
	var token struct{ Token string }
	r.call(r.admin, "POST", "/api/tokens", map[string]any{"name": "node"}).into(&token)
	require.NotEmpty(t, token.Token)

	run := exec.CommandContext(ctx, "node", "client.mjs")
	run.Dir = dir
	run.Env = append(os.Environ(), "BASE_URL="+r.url(), "API_KEY="+token.Token, "CONVERSATION="+strconv.FormatInt(thread.ID, 10))
	out, err = run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}
