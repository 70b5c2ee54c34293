package chat

import (
	"bytes"
	"encoding/json"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// delta is ChatDelta in its JSON form.
type delta struct {
	StreamID       string `json:"stream_id,omitempty"`
	Index          int32  `json:"index,omitempty"`
	Text           string `json:"text,omitempty"`
	End            bool   `json:"end,omitempty"`
	Turn           string `json:"turn,omitempty"`
	ConversationID int64  `json:"conversation_id,omitempty,string"`
	ReplyToLocalID string `json:"reply_to_local_id,omitempty"`
}

// EncodeDelta is Encode of a ChatDelta, several times as fast: there are many of them. A test holds it against Encode.
func EncodeDelta(d *butlerv1.ChatDelta) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(len(d.GetText()) + len(d.GetText())/8 + 192)
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // it stays readable
	err := enc.Encode(&delta{
		StreamID: d.GetStreamId(), Index: d.GetIndex(), Text: d.GetText(), End: d.GetEnd(), Turn: d.GetTurn(),
		ConversationID: d.GetConversationId(), ReplyToLocalID: d.GetReplyToLocalId(),
	})
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}
