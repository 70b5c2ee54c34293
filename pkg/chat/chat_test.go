package chat

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTurnIDIsATokenAndStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.String().Draw(t, "local_id")
		token := TurnID(id)
		require.Equal(t, token, TurnID(id))
		require.True(t, plain(token), "%q", token)
		if token != id {
			require.True(t, strings.HasPrefix(token, "h-"))
			require.NotEqual(t, token, TurnID(token), "a client cannot choose the hashed form of another id")
		}
	})
}

func TestSubjectsReadBack(t *testing.T) {
	turn := Turn{Session{7, 12}, "m1"}
	for _, k := range []Kind{Asked, Step, Signal, Stop, Answer} {
		for _, subject := range []string{turn.Subject(k), turn.Stored(k)} {
			got, kind, err := ParseSubject(subject)
			require.NoError(t, err)
			require.Equal(t, turn, got)
			require.Equal(t, k, kind)
		}
	}
	got, err := ParseTurn(turn.String())
	require.NoError(t, err)
	require.Equal(t, turn, got)
	for typ, subject := range map[string]string{TypeSummary: turn.StoredSummary(), TypePins: turn.StoredPins()} {
		s, got, err := ParseBeside(subject)
		require.NoError(t, err)
		require.Equal(t, turn.Session, s)
		require.Equal(t, typ, got)
		_, _, err = ParseSubject(subject)
		require.Error(t, err, "readers of turns pass over it")
	}
	for _, subject := range []string{turn.Summary(), turn.Pins(), "butler.chat.0.7.12.summary", turn.Stored(Asked), "butler.chat.1"} {
		_, _, err = ParseBeside(subject)
		require.Error(t, err, subject)
		if subject == turn.Summary() || subject == turn.Pins() {
			_, _, err = ParseSubject(subject)
			require.Error(t, err)
		}
	}
	compact, err := ParseCompact(turn.Compact())
	require.NoError(t, err)
	require.Equal(t, turn.Session, compact)
	s, err := ParseDelta(turn.Delta())
	require.NoError(t, err)
	require.Equal(t, turn.Session, s)
	for _, subject := range []string{turn.Signal("k1"), turn.Timer("k1")} {
		w, key, err := ParseWork(subject)
		require.NoError(t, err)
		require.Equal(t, turn, w)
		require.Equal(t, "k1", key)
	}
}

func FuzzParseSubject(f *testing.F) {
	f.Add("butler.chat.1.2.m.asked")
	f.Add("butler.chat.25.1.2.m.asked")
	f.Add("butler.chat.1.2.m.asked.3")
	f.Add("butler.chat.1.2.summary")
	f.Add("butler.chat.-1.2.m.asked")
	f.Fuzz(func(t *testing.T, s string) {
		turn, kind, err := ParseSubject(s)
		if err != nil {
			return
		}
		again, k2, err := ParseSubject(turn.Subject(kind))
		require.NoError(t, err)
		require.Equal(t, turn, again)
		require.Equal(t, kind, k2)
	})
}
