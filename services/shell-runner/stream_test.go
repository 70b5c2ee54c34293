package shell

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/redact"
	"github.com/butlerhub/butler/services/shell-runner/tmux"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\r\nb\r\n":                               "a\nb\n",
		"\x1b[31mred\x1b[0m 你好\r\n":                "red 你好\n",
		"10%\r20%\r100%\r\ndone":                   "100%\ndone",
		"ab\b\bxy\n":                               "xy\n",
		"\x1b]0;title\x07text\n":                   "text\n",
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1b(Bplain\x00\x07\n":                    "plain\n",
	} {
		var all bytes.Buffer
		for range 20 { // however it is cut
			all.Reset()
			p := plain{emit: func(b []byte) { all.Write(b) }}
			for rest := []byte(in); len(rest) > 0; {
				n := 1 + rand.IntN(len(rest))
				_, _ = p.Write(rest[:n])
				rest = rest[n:]
			}
			p.end()
			require.Equal(t, want, all.String(), "%q", in)
		}
	}
}

// Output that is no text, in pieces of any size, is published, and ends.
func TestBinaryOutputIsPublished(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.granted("true")
	o := r.newOutput(req)
	done := make(chan struct{})
	go func() {
		defer close(done)
		noise := make([]byte, 300<<10)
		for i := range noise {
			noise[i] = 0x80 | byte(rand.IntN(0x40)) // continuation bytes only
		}
		o.take(tmux.Output{Data: noise})
		o.take(tmux.Output{Data: []byte(strings.Repeat("\xe4\xbd\xa0", 40_000))})
		o.close()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it goes on for ever")
	}
	_, ended := r.streamed(req.GetApprovalId())
	require.True(t, ended)
}

func FuzzPlain(f *testing.F) {
	f.Add([]byte("a\r\n\x1b[31m你\b\r"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := plain{emit: func([]byte) {}}
		s := new(redact.Redactor).Stream(&p)
		_, _ = s.Write(data)
		_ = s.Close()
		p.end()
	})
}
