package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/redact"
)

func TestGuardRedact(t *testing.T) {
	t.Parallel()
	run := func(in string, args ...string) (all []redactAnswer, code int) {
		t.Helper()
		var out, errs bytes.Buffer
		code = newApp(strings.NewReader(in), &out, &errs, nil).run(append([]string{"guard", "redact"}, args...))
		for line := range strings.Lines(out.String()) {
			var answer redactAnswer
			require.NoError(t, json.Unmarshal([]byte(line), &answer), line)
			require.NotNil(t, answer.Found)
			all = append(all, answer)
		}
		return all, code
	}

	all, code := run("", "<nothing> & here", "DB_PASSWORD=Tr0ub4dor\nnext")
	require.Equal(t, exitOK, code)
	require.Equal(t, []redactAnswer{{Text: "<nothing> & here", Found: []redact.Found{}},
		{Text: "DB_PASSWORD=[REDACTED:password]\nnext", Found: []redact.Found{{Kind: "password", Count: 1}}}}, all)

	long := `"` + strings.Repeat("x", maxRedactLine) + `"`
	all, code = run(`"a"` + "\nb\n" + long + "\n\nnull\n\"\xff\"\n\"a\\nb\"\r\n\"密码：Tr0ub4dor\"")
	require.Equal(t, exitFailed, code)
	var texts []string
	for _, answer := range all {
		require.Equal(t, answer.Text == "", answer.Error != "")
		texts = append(texts, answer.Text)
	}
	require.Equal(t, []string{"a", "", "", "", "", "", "a\nb", "密码：[REDACTED:password]"}, texts)
}

// TestGuardRedactStreams holds a conversation: each line is answered before the next is written.
func TestGuardRedactStreams(t *testing.T) {
	t.Parallel()
	in, write := io.Pipe()
	read, out := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- newApp(in, out, io.Discard, nil).run([]string{"guard", "redact"})
		_ = out.Close()
	}()
	answers := bufio.NewScanner(read)
	for range 3 {
		_, err := io.WriteString(write, "\"TOKEN=0123456789abcdef\"\n")
		require.NoError(t, err)
		require.True(t, answers.Scan())
		require.JSONEq(t, `{"text":"TOKEN=[REDACTED:token]","found":[{"kind":"token","count":1}]}`, answers.Text())
	}
	require.NoError(t, write.Close())
	require.Equal(t, exitOK, <-done)
}
