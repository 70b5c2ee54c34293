package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

func TestGuardCheck(t *testing.T) {
	t.Parallel()
	run := func(in string, args ...string) ([]guardAnswer, int) {
		t.Helper()
		var out, errs bytes.Buffer
		code := newApp(strings.NewReader(in), &out, &errs, nil).run(append([]string{"guard", "check"}, args...))
		var all []guardAnswer
		for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
			var a guardAnswer
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all = append(all, a)
		}
		return all, code
	}
	verdicts := func(all []guardAnswer) string {
		var s []string
		for _, a := range all {
			s = append(s, string(a.Verdict)+"/"+string(a.Risk))
		}
		return strings.Join(s, " ")
	}

	all, code := run("", "git status", "rm -rf ~", "git push")
	if got := verdicts(all); got != "run/low refuse/critical ask/medium" || code != exitOK {
		t.Errorf("arguments: %s, exit %d", got, code)
	}
	long := `"` + strings.Repeat("x", 2*maxGuardLine) + `"`
	all, code = run(`"ls"` + "\nls\n" + long + "\n\n[1]\nnull\n\"\xff\"\n\"a\\nb\"\r\n\"sudo ls\"")
	if got := verdicts(all); got != "run/low refuse/high refuse/high refuse/high refuse/high refuse/high refuse/high ask/medium ask/medium" ||
		code != exitFailed {
		t.Errorf("input: %s, exit %d", got, code)
	}
	for _, i := range []int{1, 2, 3, 4, 5, 6} {
		if len(all[i].Reasons) != 1 || all[i].Reasons[0].Code != "bad-input" {
			t.Errorf("line %d: %+v", i+1, all[i])
		}
	}
}

// TestGuardCheckStreams holds a conversation: each line is answered before the next is written.
func TestGuardCheckStreams(t *testing.T) {
	t.Parallel()
	in, write := io.Pipe()
	read, out := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- newApp(in, out, io.Discard, nil).run([]string{"guard", "check"})
		_ = out.Close()
	}()
	answers := bufio.NewScanner(read)
	for range 3 {
		if _, err := io.WriteString(write, "\"git status\"\n"); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() || !strings.Contains(answers.Text(), `"verdict":"run"`) {
			t.Fatalf("no answer: %q", answers.Text())
		}
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitOK {
		t.Errorf("exit %d", code)
	}
}
