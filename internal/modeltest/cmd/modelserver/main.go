// Modelserver is a scripted OpenAI-compatible endpoint as a program, for benchmarks and for tests that start Butler as
// processes. It prints its base URL on the first line of its output and runs until it is interrupted.
//
// A request whose last user message contains one of these words between brackets gets what it names instead of the echo:
// [hang], [cut], [empty], [500], [429], [400], [tool NAME {JSON}].
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/butlerhub/butler/internal/modeltest"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "modelserver:", err)
		os.Exit(1)
	}
}

func run() error {
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on; port 0 takes a free one")
	chunks := flag.Int("chunks", 20, "chunks of each answer")
	delay := flag.Duration("delay", 0, "pause before each chunk")
	mode := flag.String("mode", "echo", "echo: answer the last user message; plain: the same, and no words between brackets")
	flag.Parse()
	if *mode != "echo" && *mode != "plain" {
		return fmt.Errorf("--mode %s is unknown: use echo or plain", *mode)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := modeltest.Listen(*addr)
	if err != nil {
		return err
	}
	defer s.Close()
	s.Record(false)
	s.Default(modeltest.EchoSlow(*chunks, *delay))
	if *mode == "echo" {
		s.Func(func(r *modeltest.Request) modeltest.Reply { return special(r, *delay) })
	}
	fmt.Println(s.URL())
	<-ctx.Done()
	return nil
}

var words = regexp.MustCompile(`\[(?:(hang|cut|empty|\d{3})|tool ([A-Za-z0-9_-]+) ?(\{.*\})?)\]`)

// special answers a message that asks for something other than the echo, once: after a tool's result it is nil.
func special(r *modeltest.Request, delay time.Duration) modeltest.Reply {
	if r.Last().Role != "user" {
		return nil
	}
	m := words.FindStringSubmatch(r.LastUser())
	if m == nil {
		return nil
	}
	switch m[1] {
	case "hang":
		return modeltest.Reply{modeltest.Text("wait"), modeltest.Hang()}
	case "cut":
		return modeltest.Reply{modeltest.EchoSlow(5, delay), modeltest.Cut()}
	case "empty":
		return modeltest.Reply{modeltest.Empty()}
	case "":
		return modeltest.Reply{modeltest.Text("Let me look. "), modeltest.Tool(m[2], m[3])}
	}
	status, err := strconv.Atoi(m[1])
	if err != nil || status < 400 || status > 599 {
		status = http.StatusInternalServerError
	}
	return modeltest.Reply{modeltest.Refuse(status, "scripted", "scripted refusal")}
}
