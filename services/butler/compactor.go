package main

import (
	"cmp"
	"context"

	"github.com/cloudwego/eino/schema"
	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/memory"
	"github.com/butlerhub/butler/services/butler-brain/model"
	"github.com/butlerhub/butler/services/compactor"
)

func (a *app) compactorCommand() *cobra.Command {
	return a.serviceCommand("compactor", "Run compactor: summaries of long conversations",
		"Runs compactor alone. It is best effort: without it conversations go on, with longer prompts.",
		`  BUTLER_NATS_URL=nats://nats:4222 INTERNAL_SERVICE_TOKEN=… BUTLER_COMPACTOR_ADDR=0.0.0.0:8097 \
    BUTLER_BASE_URL=https://… BUTLER_MODEL=… butler compactor`,
		func(ctx context.Context, p *process) error {
			s := p.settings
			if err := p.serveOps(); err != nil {
				return err
			}
			l, err := p.listen("BUTLER_COMPACTOR_ADDR", s.RPC.CompactorAddr)
			if err != nil {
				return err
			}
			server, err := p.rpcServer(false)
			if err != nil {
				return err
			}
			b, err := p.connectBus(ctx, "compactor", nil)
			if err != nil {
				return err
			}
			svc, err := p.startCompactor(b)
			if err != nil {
				return err
			}
			svc.Register(server)
			p.start("rpc", func(ctx context.Context) error { return server.Serve(ctx, l) })
			p.log.Info("compactor listens", "addr", l.Addr().String())
			return p.run(ctx)
		})
}

// startCompactor puts compactor together and starts it.
func (p *process) startCompactor(b *bus.Bus) (*compactor.Service, error) {
	s := p.settings
	var writer compactor.Model
	client, err := newModel(summaryModel(s), model.Config{Log: p.log})
	if err != nil {
		return nil, err
	}
	p.onClose(func() { client.Close() })
	if !client.Demo() { // which cannot write summaries
		writer = summariser{client}
	}
	svc, err := compactor.New(compactor.Deps{
		Bus: b, Model: writer, Log: p.log, Metrics: p.tel.Registry,
		Settings: compactor.Settings{Policy: compactionPolicy(s), Window: cmp.Or(s.Compaction.ContextWindow, s.Model.ContextWindow)},
	})
	if err != nil {
		return nil, err
	}
	p.tel.Checks.AddOptional("compactor", svc.Ready)
	p.start("compactor", svc.Run)
	return svc, nil
}

// compactionPolicy is when conversations are compacted.
func compactionPolicy(s config.Settings) memory.Policy {
	c := s.Compaction
	p := memory.Policy{Messages: c.TriggerMessages, Chars: c.TriggerChars, Tokens: c.TriggerTokens, Recent: c.RecentWindow}
	if p.Tokens == 0 {
		p.Tokens = s.Model.ContextWindow / 2
	}
	return p
}

// summaryModel gives the settings with the model that writes summaries as the model. A token goes to no other endpoint
// than the one it is for.
func summaryModel(s config.Settings) config.Settings {
	c := s.Compaction
	if c.BaseURL != "" && c.BaseURL != s.Model.BaseURL {
		s.Model.BaseURL, s.Model.APIToken = c.BaseURL, ""
	}
	if c.APIToken != "" {
		s.Model.APIToken = c.APIToken
	}
	if c.Model != "" {
		s.Model.Name = c.Model
	}
	return s
}

// summariser is a model as compactor calls it.
type summariser struct{ client *model.Client }

// Complete implements compactor.Model.
func (m summariser) Complete(ctx context.Context, system, user string, maxTokens int) (compactor.Answer, error) {
	msgs := []*schema.Message{schema.SystemMessage(system), schema.UserMessage(user)}
	res, err := m.client.Stream(ctx, msgs, nil, model.CallOptions{MaxTokens: maxTokens}, func(string) {})
	if err != nil {
		return compactor.Answer{}, err
	}
	return compactor.Answer{
		Text: res.Message.Content, Model: res.Model, Cut: res.Truncated(),
		PromptTokens: res.Usage.PromptTokens, CompletionTokens: res.Usage.CompletionTokens,
	}, nil
}
