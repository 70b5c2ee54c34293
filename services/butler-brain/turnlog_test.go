package brain

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/bus/bustest"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/journal/journaltest"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// The journal's promises, on a real NATS server.
func TestTurnLogKeepsTheJournalsContract(t *testing.T) {
	t.Parallel()
	journaltest.Run(t, func(t *testing.T, fire func(unit, key string, due time.Time)) journaltest.Backend {
		b := bustest.Start(t)
		log := newTurnLog(b, "test")
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = b.Consume(ctx, bus.Consume{Stream: bus.WorkStream, Durable: bus.SignalConsumer}, func(_ context.Context, events []bus.Stored) error {
				for _, ev := range events {
					turn, key, err := chat.ParseWork(ev.Subject)
					if err != nil {
						return err
					}
					var signal butlerv1.WorkSignal
					if err := chat.Decode(ev.Data, &signal); err != nil {
						return err
					}
					fire(turn.String(), key, signal.Due.AsTime())
				}
				return nil
			})
		}()
		t.Cleanup(func() { stop(); <-done })
		return journaltest.Backend{
			Log: log, Timers: log,
			Unit: func(n int) string {
				return chat.Turn{Session: chat.Session{Person: int64(1 + n%7), Thread: 1}, ID: fmt.Sprintf("m%d", n)}.String()
			},
			Open: func(ctx context.Context, unit string, body []byte) error {
				turn, err := chat.ParseTurn(unit)
				require.NoError(t, err)
				ev := bus.NewEvent(chat.TypeAsked, "", turn.Subject(chat.Asked), body)
				if _, err = b.Append(ctx, ev, bus.Expect{Filter: turn.Filter()}); errors.Is(err, bus.ErrFenced) {
					return nil
				}
				return err
			},
		}
	})
}
