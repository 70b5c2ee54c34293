// An agent for Butler: it measures how much room is left on a disk.
//
//	AGENT_CREDENTIALS=agent.creds NATS_URL=nats://127.0.0.1:4222 go run ./examples/agent
package main

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"

	"github.com/butlerhub/butler/pkg/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	a, err := agent.New(agent.Config{Credentials: os.Getenv("AGENT_CREDENTIALS"), URL: os.Getenv("NATS_URL"), Log: slog.Default()})
	if err != nil {
		slog.Error("the agent cannot start", "error", err)
		os.Exit(1)
	}
	a.Handle("", disk) // whatever it is asked, since it declares no capabilities
	if err := a.Run(ctx); err != nil {
		slog.Error("the agent ended", "error", err)
		os.Exit(1)
	}
}

func disk(ctx context.Context, t *agent.Task) (any, error) {
	in := struct{ Path string }{Path: "/"}
	if err := t.Input(&in); err != nil {
		return nil, err
	}
	t.Progress(ctx, "measuring "+in.Path)
	out, err := exec.CommandContext(ctx, "df", "-h", "--", in.Path).CombinedOutput()
	return map[string]string{"df": string(out)}, err
}
