package store

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

// message is a person's message; its time is its sequence in seconds.
func message(id uint64, person, thread int64, text string) Message {
	return Message{
		ID: id, PersonID: person, ThreadID: thread, Turn: fmt.Sprintf("m%d", id), LocalID: fmt.Sprintf("m%d", id),
		Role: HumanMessage, SenderID: person, SenderName: "root", SenderRole: "ADMIN", Text: text,
		CreatedAt: time.Unix(int64(id), 0).UTC(),
	}
}

func answer(id uint64, to Message, text string) Message {
	return Message{
		ID: id, PersonID: to.PersonID, ThreadID: to.ThreadID, Turn: to.Turn, LocalID: to.LocalID + ":answer",
		Role: ButlerMessage, SenderID: ButlerID, SenderName: "Butler", SenderRole: "BUTLER", Text: text,
		StreamID: to.Turn + "-1-1", Status: "answered", ReplyToLocalID: to.LocalID,
		Usage:     &Usage{PromptTokens: 12, CompletionTokens: 34, ModelCalls: 1},
		CreatedAt: time.Unix(int64(id), 0).UTC(),
	}
}

func TestMessages(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		thread, other := f.thread(t, 1), f.thread(t, f.person(t, "ada").ID)
		var all []Message
		for i := uint64(1); i <= 99; i += 2 {
			question := message(i*10, 1, thread.ID, fmt.Sprintf("question %d 你好 \x00", i))
			all = append(all, question, answer(i*10+10, question, "**answer**\n"+strings.Repeat("x", int(i)*100)))
		}
		elsewhere := message(5, other.OwnerID, other.ID, "elsewhere")
		require.NoError(t, f.Apply(ctx, append(all, elsewhere), 1000))
		for i := range all {
			all[i].Text = strings.ReplaceAll(all[i].Text, "\x00", "\uFFFD")
		}

		page, err := f.Messages(ctx, 1, thread.ID, 0, 10)
		require.NoError(t, err)
		require.Equal(t, all[90:], page, "the newest, oldest first")
		page, err = f.Messages(ctx, 1, thread.ID, page[0].ID, 10)
		require.NoError(t, err)
		require.Equal(t, all[80:90], page)
		page, err = f.Messages(ctx, 1, thread.ID, 0, 0)
		require.NoError(t, err)
		require.Equal(t, all, page)
		page, err = f.Messages(ctx, 1, thread.ID, 10, 10)
		require.NoError(t, err)
		require.Empty(t, page)
	})
}

// TestApplyInAnyOrder delivers the same events in random batches, order and repetition: the result is always the same.
func TestApplyInAnyOrder(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		random := rand.New(rand.NewPCG(1, 2))
		var want []Message
		for round := range 5 {
			thread, err := f.CreateThread(ctx, 1, NewThread{})
			require.NoError(t, err)
			offset := uint64(round+1) * 1000
			var events []Message
			for i := uint64(1); i <= 40; i += 2 {
				question := message(offset+i, 1, thread.ID, fmt.Sprintf("question %d", i))
				events = append(events, question, answer(offset+i+1, question, "ok"))
			}
			want = append(want, events...)
			deliveries := append(append([]Message{}, events...), events...)
			random.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
			for len(deliveries) > 0 {
				n := 1 + random.IntN(len(deliveries))
				batch := deliveries[:n]
				deliveries = deliveries[n:]
				require.NoError(t, f.Apply(ctx, batch, batch[0].ID))
			}
			require.NoError(t, f.Apply(ctx, nil, offset+40))
			page, err := f.Messages(ctx, 1, thread.ID, 0, 100)
			require.NoError(t, err)
			require.Equal(t, events, page)
			thread, err = f.Thread(ctx, 1, thread.ID)
			require.NoError(t, err)
			require.Equal(t, "question 1", thread.Title)
			require.Equal(t, events[39].CreatedAt, thread.LastMessageAt)
		}
		p, err := f.Projection(ctx)
		require.NoError(t, err)
		require.EqualValues(t, len(want), p.Applied)
		require.EqualValues(t, 5040, p.Position)
		require.Zero(t, p.Ignored)
	})
}

func TestApplyIgnoresWhatIsNotThePersons(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		ada := f.person(t, "ada")
		mine, theirs := f.thread(t, 1), f.thread(t, ada.ID)
		batch := []Message{
			message(1, 1, mine.ID, "fine"),
			message(2, 1, theirs.ID, "into another's conversation"),
			message(3, 1, 9999, "into none"),
			message(4, ada.ID, theirs.ID, "fine too"),
			message(0, 1, mine.ID, "without a sequence"),
		}
		require.NoError(t, f.Apply(ctx, batch, 4))
		require.NoError(t, f.Apply(ctx, batch, 4))
		p, err := f.Projection(ctx)
		require.NoError(t, err)
		require.Equal(t, Projection{Position: 4, Applied: 2, Ignored: 3, UpdatedAt: f.clock.Now()}, p)
		page, err := f.Messages(ctx, ada.ID, theirs.ID, 0, 10)
		require.NoError(t, err)
		require.Equal(t, []Message{batch[3]}, page)
		requireCode(t, fault.TooLarge, f.Apply(ctx, make([]Message, MaxApply+1), 5))
	})
}

func TestResetAndReplay(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		position, err := f.Position(ctx)
		require.NoError(t, err)
		require.Zero(t, position)
		thread := f.thread(t, 1)
		var events []Message
		for i := range uint64(deleteBatch + 1) {
			events = append(events, message(i+1, 1, thread.ID, fmt.Sprint("number ", i)))
		}
		require.NoError(t, f.Apply(ctx, events, uint64(len(events))))
		before, err := f.Thread(ctx, 1, thread.ID)
		require.NoError(t, err)
		require.NoError(t, f.ResetProjection(ctx))
		p, err := f.Projection(ctx)
		require.NoError(t, err)
		require.Zero(t, p)
		page, err := f.Messages(ctx, 1, thread.ID, 0, 10)
		require.NoError(t, err)
		require.Empty(t, page)

		require.NoError(t, f.Apply(ctx, events, uint64(len(events))))
		after, err := f.Thread(ctx, 1, thread.ID)
		require.NoError(t, err)
		require.Equal(t, before, after)
		p, err = f.Projection(ctx)
		require.NoError(t, err)
		require.EqualValues(t, len(events), p.Applied)
		require.EqualValues(t, len(events), p.Position)
	})
}

func TestTitles(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		thread, err := f.CreateThread(ctx, 1, NewThread{})
		require.NoError(t, err)
		title := func() string {
			thread, err := f.Thread(ctx, 1, thread.ID)
			require.NoError(t, err)
			return thread.Title
		}
		// Sequences beyond 32 bits, as of a log that is years old.
		const base = 5_000_000_000
		second := message(base+2, 1, thread.ID, "second")
		require.NoError(t, f.Apply(ctx, []Message{answer(base+1, second, "an answer is no title"), second}, base+2))
		require.Equal(t, "second", title())
		require.NoError(t, f.Apply(ctx, []Message{message(base, 1, thread.ID, "\n  first\tof all \nmore")}, base))
		require.Equal(t, "first of all", title())
		require.NoError(t, f.Apply(ctx, []Message{message(base+3, 1, thread.ID, "third")}, base+3))
		require.Equal(t, "first of all", title())
		_, err = f.UpdateThread(ctx, 1, thread.ID, ThreadChange{Title: ptr("My own")})
		require.NoError(t, err)
		require.NoError(t, f.Apply(ctx, []Message{message(1, 1, thread.ID, "earliest")}, base+3))
		require.Equal(t, "My own", title())
		_, err = f.UpdateThread(ctx, 1, thread.ID, ThreadChange{Title: ptr("")})
		require.NoError(t, err)
		require.NoError(t, f.Apply(ctx, []Message{message(base+4, 1, thread.ID, "the next one")}, base+4))
		require.Equal(t, "the next one", title())
	})
}

func TestDeriveTitle(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                         "",
		" \n\t\r\n":                "",
		"hello":                    "hello",
		"\n\nhello\nworld":         "hello",
		"a\x00b":                   "a b",
		"\xff\xfe\nnext":           "next",
		strings.Repeat("长", 60):    strings.Repeat("长", 60),
		strings.Repeat("长", 61):    strings.Repeat("长", 59) + "…",
		strings.Repeat("x", 1<<20): strings.Repeat("x", 59) + "…",
	} {
		require.Equal(t, want, deriveTitle(text), "%.20q", text)
	}
}

func FuzzDeriveTitle(f *testing.F) {
	f.Add("hello\nworld")
	f.Add("\xff长\u2028")
	f.Fuzz(func(t *testing.T, text string) {
		title := deriveTitle(text)
		require.True(t, utf8.ValidString(title))
		require.LessOrEqual(t, utf8.RuneCountInString(title), derivedTitleRunes)
		require.Equal(t, strings.TrimSpace(title), title)
	})
}
