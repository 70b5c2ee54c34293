package chat

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestEncodeDelta(t *testing.T) {
	t.Parallel()
	for _, d := range []*butlerv1.ChatDelta{
		{},
		{StreamId: "m1-x-1", Index: 3, Text: "a \"piece\" <b>\n你好\u2028", Turn: "m1", ConversationId: 1 << 60, ReplyToLocalId: "m1"},
		{StreamId: "m1-x-1", Index: 4, End: true, Turn: "m1", ConversationId: 12, ReplyToLocalId: "m1"},
	} {
		want, err := Encode(d)
		require.NoError(t, err)
		got, err := EncodeDelta(d)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(got))
		var back butlerv1.ChatDelta
		require.NoError(t, Decode(got, &back))
		require.True(t, proto.Equal(d, &back))
	}
	// A field that is added to the message must be added there too.
	require.Equal(t, 7, (&butlerv1.ChatDelta{}).ProtoReflect().Descriptor().Fields().Len())
}
