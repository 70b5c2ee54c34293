package shell

import (
	"context"
	"fmt"
	"time"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

// idleLook is how often sessions are looked at.
const idleLook = time.Second

// watchIdle closes sessions in which nothing happens, after a warning, until ctx ends. One in which a job is at work is in
// use, however long nothing is printed.
func (s *Service) watchIdle(ctx context.Context) error {
	tick := time.NewTicker(idleLook)
	defer tick.Stop()
	often := time.NewTicker(promptLook)
	defer often.Stop()
	hourly := time.NewTicker(time.Hour)
	defer hourly.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hourly.C:
			s.forgetNotes()
			continue
		case <-often.C:
			s.watchPrompts(ctx)
			continue
		case <-tick.C:
		}
		for _, sess := range s.tmux.Sessions() {
			s.lookIdle(ctx, sess)
		}
		s.forgetControlled()
	}
}

func (s *Service) lookIdle(ctx context.Context, sess *tmux.Session) {
	settings := s.settings.Load()
	person := personOf(sess)
	seat := s.seat(person)
	quiet, working := sess.Idle()
	left := settings.IdleTimeout - quiet
	seat.mu.Lock()
	warned := !seat.warned.IsZero()
	if working || left > settings.IdleWarning {
		seat.warned = time.Time{}
		seat.mu.Unlock()
		return
	}
	if !warned {
		seat.warned = s.now()
	}
	seat.mu.Unlock()
	if !warned {
		s.tell(seat, fmt.Sprintf("The shell %s on %s closes in %s, since nothing happens in it. Any command keeps it.",
			sess.Name(), s.host, left.Round(time.Second)), fmt.Sprintf("%s 上的 shell %s 因闲置将在 %s 后关闭；执行任意命令即可保留。",
			s.host, sess.Name(), left.Round(time.Second)))
		return
	}
	if left > 0 || !seat.TryLock() {
		return
	}
	defer seat.Unlock()
	if quiet, working = sess.Idle(); working || quiet < settings.IdleTimeout {
		return
	}
	if err := sess.Close(ctx); err != nil {
		s.log.WarnContext(ctx, "an idle shell could not be closed", "session", sess.Name(), "error", err)
		return
	}
	s.log.InfoContext(ctx, "an idle shell was closed", "session", sess.Name())
	s.tell(seat, fmt.Sprintf("The shell %s on %s was closed: nothing happened in it for %s. The next command opens a new one.",
		sess.Name(), s.host, settings.IdleTimeout), fmt.Sprintf("%s 上的 shell %s 已因闲置 %s 而关闭；下一条命令会打开新的会话。",
		s.host, sess.Name(), settings.IdleTimeout))
	seat.mu.Lock()
	seat.warned = time.Time{}
	clear(seat.grants)
	seat.mu.Unlock()
}

// tell shows a person a notice in the conversation that was last attached to their shell. It is best effort.
func (s *Service) tell(seat *seat, en, zh string) {
	seat.mu.Lock()
	thread, language := seat.thread, seat.language
	seat.mu.Unlock()
	if thread == 0 {
		return
	}
	text := en
	if language == "zh" {
		text = zh
	}
	id := fmt.Sprintf("notice-%s-%d", s.host, s.now().UnixNano())
	for _, d := range []*butlerv1.ChatDelta{{StreamId: id, Index: 1, Text: text}, {StreamId: id, Index: 2, End: true}} {
		d.ConversationId = thread
		data, err := chat.EncodeDelta(d)
		if err != nil {
			return
		}
		session := chat.Session{Person: seat.person, Thread: thread}
		_ = s.bus.Send(context.Background(), bus.NewEvent(chat.TypeDelta, s.bus.Source(), session.Delta(), data))
	}
}
