package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/gateway"
)

func (a *app) replayCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "replay",
		Short: "Rebuild the history in SQL from the log",
		Long: `Empties the read model of messages (what history and search show) and fills it again from the log. People,
tokens and conversations stay as they are. It may be repeated, and Butler may run meanwhile; the history is
incomplete until it is done.

It works on the log and the database of the settings: on BUTLER_NATS_URL, or through the ` + "`butler up`" + ` that runs
on the data folder, or, when none does, on the data folder itself.`,
		Example: `  butler replay
  BUTLER_NATS_URL=nats://nats:4222 BUTLER_NATS_CREDENTIALS=gateway.nk BUTLER_DATABASE_URL=postgres://… butler replay`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.do(a.replay) },
	}
}

func (a *app) replay(ctx context.Context) error {
	o, err := a.operation()
	if err != nil {
		return err
	}
	defer o.close()
	db, err := o.openDatabase(ctx)
	if err != nil {
		return err
	}
	st, err := newStore(db, o.settings)
	if err != nil {
		return err
	}
	b, err := o.openLog(ctx)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	if err := b.Wait(wait, bus.ChatStream); err != nil {
		return fault.Wrap(err, fault.NotFound, "NATS has no stream %s: is it Butler's NATS, and did butler-brain ever run?", bus.ChatStream)
	}
	if err := st.Migrate(ctx); err != nil {
		return err
	}
	began := time.Now()
	_, progress := terminalOf(a.err)
	progress = progress && !a.json
	events, err := gateway.Replay(ctx, b, st, func(n int) {
		if progress {
			fmt.Fprintf(a.err, "\r%d events read", n)
		}
	})
	if progress {
		fmt.Fprint(a.err, "\r\x1b[K")
	}
	if err != nil {
		return fmt.Errorf("after %d events, and the history is incomplete until `butler replay` is repeated: %w", events, err)
	}
	state, err := st.Projection(ctx)
	if err != nil {
		return err
	}
	took := time.Since(began)
	if a.json {
		return a.printJSON(map[string]any{
			"events": events, "messages": state.Applied, "ignored": state.Ignored, "position": state.Position,
			"seconds": took.Seconds(),
		})
	}
	fmt.Fprintf(a.out, "%d events read in %.1f s; the history has %d messages.\n", events, took.Seconds(), state.Applied)
	if state.Ignored > 0 {
		fmt.Fprintf(a.out, "%d messages belong to conversations that were deleted and stay out.\n", state.Ignored)
	}
	return nil
}
