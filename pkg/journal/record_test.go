package journal_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/butlerhub/butler/pkg/journal"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func everyEntry() []journal.Entry {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	return []journal.Entry{
		{Kind: journal.EntryClaim, Attempt: 2},
		{Kind: journal.EntryIntent, Key: "tool-1", Repeat: journal.Once, Description: "say <hello>"},
		{Kind: journal.EntryOutcome, Key: "tool-1", Value: json.RawMessage(`{"a":[1.5,null,"<&>"]}`),
			Spent: &journal.Spent{ModelCalls: 1, ToolCalls: 2, Tokens: 3, ActiveMs: 4}},
		{Kind: journal.EntryOutcome, Key: "n", Value: json.RawMessage(`null`)},
		{Kind: journal.EntryOutcome, Key: "e", Error: &journal.EntryError{Class: "unknown", Code: "c", Message: "m"}},
		{Kind: journal.EntryAwait, Key: "w", Deadline: at},
		{Kind: journal.EntrySignal, Key: "w", Deadline: at, Timeout: true},
	}
}

// What this package writes is what the messages of proto/butler/v1 say, and the other way round.
func TestPayloadsAreProtobufJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind journal.Kind
		msg  proto.Message
	}{
		{journal.KindStep, &butlerv1.ChatStep{}},
		{journal.KindSignal, &butlerv1.ChatSignal{}},
		{journal.KindEnd, &butlerv1.ChatAnswer{}},
	} {
		r := journal.Record{Kind: c.kind, Worker: "w1", Entries: everyEntry()}
		if c.kind == journal.KindEnd {
			r.End = &journal.End{Status: "answered", Reason: "r", Result: json.RawMessage(`{"text":"<b>","deltas":3}`)}
		}
		data, err := r.Encode()
		require.NoError(t, err)
		require.NoError(t, protojson.Unmarshal(data, c.msg), "%s", data)
		back, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(c.msg)
		require.NoError(t, err)
		require.JSONEq(t, string(data), string(back))
		read := journal.Record{Kind: c.kind}
		require.NoError(t, read.Decode(back))
		require.Equal(t, len(r.Entries), len(read.Entries))
		for i, e := range read.Entries {
			require.Equal(t, r.Entries[i].Kind, e.Kind)
			require.True(t, r.Entries[i].Deadline.Equal(e.Deadline))
			require.Equal(t, r.Entries[i].Spent, e.Spent)
			require.Equal(t, r.Entries[i].Error, e.Error)
		}
		require.Equal(t, "null", string(read.Entries[3].Value), "null is a value")
		require.Nil(t, read.Entries[4].Value)
	}
}

func TestNewerRecordsAreTolerated(t *testing.T) {
	t.Parallel()
	r := journal.Record{Seq: 2, Kind: journal.KindStep}
	require.NoError(t, r.Decode([]byte(`{"worker":"w9","mood":"good","entries":[
		{"kind":"dream","key":"d","of":{"electric":"sheep"}},
		{"kind":"outcome","key":"a","value":1,"smell":"nice","spent":{"coffee":2,"tokens":5}}]}`)))
	st := journal.Fold([]journal.Record{
		{Seq: 1, Kind: journal.KindOpen}, r,
		{Seq: 3, Kind: "footnote", Body: []byte("x")},
		{Seq: 4, Kind: journal.KindEnd, End: &journal.End{Status: "answered"}},
		{Seq: 5, Kind: journal.KindCancel},
	})
	require.Equal(t, "1", string(st.Outcomes["a"].Value))
	require.EqualValues(t, 5, st.Spent.Tokens)
	require.EqualValues(t, 5, st.Last)
	require.Nil(t, st.Cancel, "what follows the end does not count")
	for _, bad := range []string{"", "[]", `{"entries":{}}`, `{"entries":[{"kind":7}]}`} {
		require.Error(t, (&journal.Record{Kind: journal.KindStep}).Decode([]byte(bad)), bad)
	}
	require.Error(t, (&journal.Record{Kind: journal.KindEnd}).Decode([]byte(`{"worker":"w"}`)), "an end without an end")
}

func TestCanonicalValues(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                            `null`,
		" { \"a\" : [ 1 , 2 ] }\n":    `{"a":[1,2]}`,
		`12345678901234567890.123`:    `12345678901234567890.123`,
		`1e999`:                       `"1e999"`,
		`{"b":1,"b":2}`:               `{"b":2}`,
		`{"a":1,"\u0061":2}`:          `{"a":2}`,
		`{"a":{"b":1},"b":[{"a":1}]}`: `{"a":{"b":1},"b":[{"a":1}]}`,
		`"a\u0000b"`:                  `"a\ufffdb"`,
		`"\ud800"`:                    `"\ufffd"`,
		`"\ud83d\ude00"`:              `"\ud83d\ude00"`,
		`"\udc00\ud800x"`:             `"\ufffd\ufffdx"`,
		"\"\xff<&>\u2028é\"":          "\"\\ufffd<&>\u2028é\"",
		`"\"\\ \/ : , { }"`:           `"\"\\ \/ : , { }"`,
		`-0.0`:                        `-0.0`,
	} {
		got, err := journal.Canonical(json.RawMessage(in))
		require.NoError(t, err, in)
		require.Equal(t, want, string(got), in)
	}
	for _, bad := range []string{"{", "x", `{"a"}`, "1 2", strings.Repeat("[", 1001) + strings.Repeat("]", 1001)} {
		_, err := journal.Canonical(json.RawMessage(bad))
		require.Error(t, err, bad)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\ud800\u0000",null,{"a":1e400}]}`, "\"\xff\"", ` [ 1.50 , true ] `, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := journal.Canonical(in)
		if err != nil {
			if json.Valid(in) && len(in) < 1000 {
				t.Fatalf("%q refused: %v", in, err)
			}
			return
		}
		if !json.Valid(got) || !utf8.Valid(got) {
			t.Fatalf("%q gives %q", in, got)
		}
		if again, err := journal.Canonical(got); err != nil || string(again) != string(got) {
			t.Fatalf("%q is not stable: %q", got, again)
		}
		r := journal.Record{Kind: journal.KindStep, Entries: []journal.Entry{{Kind: journal.EntryOutcome, Key: "k", Value: got}}}
		data, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back := journal.Record{Kind: journal.KindStep}
		if err := back.Decode(data); err != nil || string(back.Entries[0].Value) != string(got) {
			t.Fatalf("%q comes back as %q (%v)", got, back.Entries[0].Value, err)
		}
		if err := protojson.Unmarshal(got, &structpb.Value{}); err != nil {
			t.Fatalf("protobuf does not read %q: %v", got, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	data, _ := journal.Record{Kind: journal.KindStep, Worker: "w", Entries: everyEntry()}.Encode()
	f.Add(data)
	f.Add([]byte(`{"worker":"w","end":{"status":"answered","result":{}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		st := &journal.State{}
		st.Apply(journal.Record{Seq: 1, Kind: journal.KindOpen, Body: in})
		for i, kind := range []journal.Kind{journal.KindStep, journal.KindSignal, journal.KindEnd} {
			r := journal.Record{Seq: uint64(i + 2), Kind: kind}
			if r.Decode(in) == nil {
				st.Apply(r)
			}
		}
		st.Suspended()
	})
}
