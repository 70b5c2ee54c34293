package chat

import (
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

var (
	marshal   = protojson.MarshalOptions{UseProtoNames: true}
	unmarshal = protojson.UnmarshalOptions{DiscardUnknown: true}
)

// Encode gives an event message as its JSON payload.
func Encode(m proto.Message) ([]byte, error) { return marshal.Marshal(m) }

// Decode reads an event message from its JSON payload; fields that a newer version added are passed over.
func Decode(data []byte, m proto.Message) error { return unmarshal.Unmarshal(data, m) }

// Statuses of an answer.
const (
	Answered = "answered" // the text is the whole answer
	Failed   = "failed"   // the text says why there is none
	Stopped  = "stopped"  // the person stopped it; the text is what there was until then
)
