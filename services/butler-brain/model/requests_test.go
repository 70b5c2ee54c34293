package model_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cloudwego/eino/schema"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/internal/modeltest"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// What an endpoint does not take is left out from then on.
func TestQuirksAreLearned(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		key, refusal string
	}{
		"max_tokens":     {"max_tokens", "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."},
		"temperature":    {"temperature", "Unsupported value: 'temperature' does not support 0.5 with this model."},
		"stream_options": {"stream_options", "extra fields not permitted: stream_options"},
		"tools":          {"tools", "registry.ollama.ai/library/gemma:2b does not support tools"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Func(func(r *modeltest.Request) modeltest.Reply {
				var body map[string]json.RawMessage
				if json.Unmarshal(r.Body, &body) != nil || body[tc.key] != nil {
					return modeltest.Reply{modeltest.Refuse(400, "", tc.refusal)}
				}
				return nil
			})
			c := client(t, s.URL())
			temperature := float32(0.5)
			opts := model.CallOptions{Temperature: &temperature, MaxTokens: 10}
			for want := range 2 {
				_, err := c.Stream(deadline(t), ask("x"), []*schema.ToolInfo{listAgents}, opts, nil)
				require.NoError(t, err)
				require.Equal(t, 2+want, s.Count(), "one refusal, then none")
			}
		})
	}
}

func TestReasoningModelsGetWhatTheyTake(t *testing.T) {
	t.Parallel()
	s := start(t)
	temperature := float32(0.5)
	c := client(t, s.URL(), func(cfg *model.Config) { cfg.Model = "gpt-5-mini" })
	_, err := c.Stream(deadline(t), ask("x"), nil, model.CallOptions{Temperature: &temperature, MaxTokens: 10}, nil)
	require.NoError(t, err)
	body := string(s.Requests()[0].Body)
	require.Contains(t, body, `"max_completion_tokens":10`)
	require.NotContains(t, body, "temperature")
}

// Bad arguments in the history must not make the endpoint refuse everything that follows.
func TestHistoryIsMadeSound(t *testing.T) {
	t.Parallel()
	s := start(t)
	calls := []schema.ToolCall{
		{ID: "a", Type: "function", Function: schema.FunctionCall{Name: "f", Arguments: `{"x":`}},
		{ID: "b", Type: "function", Function: schema.FunctionCall{Name: "g"}},
		{ID: "c", Type: "function", Function: schema.FunctionCall{Name: "h", Arguments: `{"ok":1}`}},
	}
	msgs := append(ask("x"), nil, schema.AssistantMessage(" ", nil), schema.AssistantMessage("", calls),
		schema.ToolMessage("not JSON", "a"), schema.ToolMessage("", "b"), schema.ToolMessage("fine", "c"))
	_, err := client(t, s.URL()).Stream(deadline(t), msgs, nil, model.CallOptions{}, nil)
	require.NoError(t, err)
	got := s.Requests()[0].Messages
	require.Len(t, got, 6)
	require.JSONEq(t, `{"invalid_arguments":"{\"x\":"}`, got[2].ToolCalls[0].Arguments)
	require.Equal(t, "{}", got[2].ToolCalls[1].Arguments)
	require.Equal(t, `{"ok":1}`, got[2].ToolCalls[2].Arguments)
	require.Equal(t, "a", got[3].ToolCallID)
	require.NotEmpty(t, got[4].Text)
	require.Equal(t, `{"x":`, calls[0].Function.Arguments, "the given messages stay as they are")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := start(t)
	reg := prometheus.NewRegistry()
	with := func(cfg *model.Config) { cfg.Registerer = reg }
	c := client(t, s.URL(), with)
	_ = client(t, s.URL(), with) // a second client of the process shares them
	s.Next(modeltest.Refuse(500, "", "x"))
	_, err := c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
	require.Error(t, err)
	_, err = c.Stream(deadline(t), ask("x"), nil, model.CallOptions{}, nil)
	require.NoError(t, err)
	got := map[string]float64{}
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, label := range m.GetLabel() {
				key += " " + label.GetValue()
			}
			got[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	require.Equal(t, map[string]float64{
		"butler_model_calls_total model_unavailable":  1,
		"butler_model_calls_total ok":                 1,
		"butler_model_call_seconds model_unavailable": 1,
		"butler_model_call_seconds ok":                1,
		"butler_model_first_token_seconds":            1,
		"butler_model_tokens_total prompt":            10,
		"butler_model_tokens_total completion":        20,
	}, got)
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  model.Config
		url  string
		fail string
	}{
		"demo":            {},
		"endpoint":        {cfg: model.Config{BaseURL: "http://h:1/v1/", Model: "m"}, url: "http://h:1/v1"},
		"whole path":      {cfg: model.Config{BaseURL: "https://h/v1/chat/completions", Model: "m"}, url: "https://h/v1"},
		"anthropic":       {cfg: model.Config{AnthropicAPIKey: "k", Model: "claude"}, url: model.AnthropicURL},
		"own before":      {cfg: model.Config{AnthropicAPIKey: "k", BaseURL: "http://h", Model: "m"}, url: "http://h"},
		"no url":          {cfg: model.Config{APIToken: token, Model: "m"}, fail: "BUTLER_BASE_URL"},
		"no model":        {cfg: model.Config{BaseURL: "http://h"}, fail: "BUTLER_MODEL"},
		"anthropic model": {cfg: model.Config{AnthropicAPIKey: "k"}, fail: "BUTLER_MODEL"},
		"bad url":         {cfg: model.Config{BaseURL: "api.example.com", Model: "m"}, fail: "BUTLER_BASE_URL"},
		"token in url":    {cfg: model.Config{BaseURL: "https://u:" + token + "@h/v1", Model: "m"}, fail: "BUTLER_BASE_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := tc.cfg.Complete()
			_, newErr := model.New(tc.cfg)
			if tc.fail != "" {
				require.ErrorContains(t, err, tc.fail)
				require.ErrorContains(t, newErr, tc.fail)
				require.NotContains(t, err.Error(), token)
				return
			}
			require.NoError(t, err)
			require.NoError(t, newErr)
			require.Equal(t, tc.url, cfg.BaseURL)
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := start(t)
	require.NoError(t, client(t, s.URL()).Check(deadline(t)))
	err := client(t, strings.TrimSuffix(s.URL(), "/v1")).Check(deadline(t))
	require.Equal(t, model.NotFound, model.ReasonOf(err), err)
}
