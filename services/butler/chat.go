package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
)

// chatFlags are what `butler chat` was asked for.
type chatFlags struct {
	thread  int64
	fresh   bool
	localID string
}

func (a *app) chatCommand() *cobra.Command {
	var flags chatFlags
	cmd := &cobra.Command{
		Use:   "chat [QUESTION...]",
		Short: "Talk to Butler in the terminal, or ask one question",
		Long: `Without a question and in a terminal, a conversation: Enter sends, Alt-Enter is a new line, the arrow keys
bring back what was said before, Ctrl-C stops an answer and, at the prompt, leaves, as Ctrl-D does. /help shows
the rest.

With a question, or with standard input that is not a terminal, one question is asked and its answer printed;
"-" stands for standard input within a question. In a terminal the answer is printed while it comes in, else
whole at its end. The command fails when there is no whole answer.

With --json each line of the output is one JSON object: {"type": "accepted"}, {"type": "text"} for each piece
({"type": "restart"} makes the pieces before it void), {"type": "approval"} and {"type": "output"} for commands that wait
for somebody and what they print, and {"type": "answer"} with the final message.`,
		Example: `  butler chat
  butler chat "What is the time in Tokyo?"
  git diff | butler chat "Write a commit message for this:" -
  butler chat --thread 12 --json "And then?"`,
		RunE: func(_ *cobra.Command, args []string) error {
			if flags.fresh && flags.thread != 0 {
				return usagef("--new and --thread do not go together")
			}
			if flags.thread < 0 {
				return usagef("--thread must be the id of a conversation: see `butler sessions list`")
			}
			return a.chat(args, flags)
		},
	}
	f := cmd.Flags()
	f.Int64VarP(&flags.thread, "thread", "t", 0, "id of the conversation (default: the one that the page opens with)")
	f.BoolVarP(&flags.fresh, "new", "n", false, "begin a new conversation")
	f.StringVar(&flags.localID, "local-id", "", "id of the message: asking again under it is not a second question")
	return cmd
}

func (a *app) chat(args []string, flags chatFlags) error {
	_, typed := terminalOf(a.in)
	question, err := a.question(args, typed)
	if err != nil {
		return err
	}
	c, err := a.chatClient(typed)
	if err != nil {
		return err
	}
	defer c.Close()
	t := &talk{app: a, client: c, conversation: flags.thread, screen: a.out}
	defer t.close()
	if flags.fresh {
		if err := a.do(t.begin); err != nil {
			return err
		}
	}
	if question != "" {
		return a.explain(c, t.once(question, flags.localID))
	}
	if flags.localID != "" {
		return usagef("--local-id is for one question")
	}
	return a.explain(c, t.converse())
}

// question puts one question together; "" when there is none and a person can type.
func (a *app) question(args []string, typed bool) (string, error) {
	if len(args) == 0 && typed {
		return "", nil
	}
	if len(args) == 0 {
		args = []string{"-"}
	}
	parts := make([]string, 0, len(args))
	read := false
	for _, arg := range args {
		if arg != "-" {
			parts = append(parts, arg)
			continue
		}
		if read {
			return "", usagef("\"-\" can stand in a question only once")
		}
		read = true
		text, err := a.readAll(chat.MaxText)
		if err != nil {
			return "", err
		}
		parts = append(parts, "\n"+text)
	}
	question := strings.TrimSpace(strings.Join(parts, " "))
	switch {
	case question == "":
		return "", usagef("there is nothing to ask: give a question, or write it to standard input")
	case len(question) > chat.MaxText:
		return "", usagef("the question is longer than %d KiB: make it shorter", chat.MaxText>>10)
	case !utf8.ValidString(question):
		return "", usagef("the question is not UTF-8 text: Butler reads text only")
	}
	return question, nil
}

// chatClient gives a signed-in client; a person in a terminal who is not signed in is asked to.
func (a *app) chatClient(typed bool) (*client.Client, error) {
	c, err := a.client()
	if fault.CodeOf(err) != fault.Unauthenticated || !typed || a.json {
		return c, err
	}
	err = a.do(func(ctx context.Context) error {
		if c, err = a.anonymous(); err != nil {
			return err
		}
		if err := c.Ping(ctx); err != nil {
			return err
		}
		user, err := a.askUser("")
		if err != nil {
			return err
		}
		password, err := a.secret(fmt.Sprintf("Password of %s at %s: ", user, c.Server()), false)
		if err != nil {
			return err
		}
		c, _, err = a.signIn(ctx, c, user, password)
		return err
	})
	return c, err
}

// talk is one run of `butler chat`.
type talk struct {
	app          *app
	client       *client.Client
	feed         *client.Feed // nil until it is needed
	conversation int64        // 0 for the default one
	screen       io.Writer

	mu     sync.Mutex
	lost   bool // the connection is lost and that was said
	asking bool
}

func (t *talk) close() {
	if t.feed != nil {
		t.feed.Close()
	}
}

// begin makes a new conversation.
func (t *talk) begin(ctx context.Context) error {
	thread, err := t.client.NewThread(ctx, "")
	t.conversation = thread.ID
	return err
}

func (t *talk) connect(ctx context.Context) error {
	if t.feed != nil {
		return nil
	}
	feed, err := t.client.Feed(ctx, client.FeedOptions{Lost: t.connectionLost, Back: t.connectionBack})
	t.feed = feed
	return err
}

func (t *talk) connectionLost(error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.asking {
		return // nobody waits; it comes back by itself
	}
	t.lost = true
	t.notice("connection lost, trying again…")
}

func (t *talk) connectionBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost {
		t.lost = false
		t.notice("connected again")
	}
}

// notice writes a line beside the conversation.
func (t *talk) notice(format string, args ...any) {
	if t.app.json {
		return
	}
	text := oneLine(fmt.Sprintf(format, args...))
	if _, ok := t.screen.(*rawScreen); ok {
		fmt.Fprintf(t.screen, "\n[%s]\n", text)
		return
	}
	fmt.Fprintf(t.app.err, "butler: %s\n", text)
}

// live says whether pieces of an answer are printed as they come: not to a file or a program, where what turns out to be
// void could not be taken back.
func (t *talk) live() bool {
	if _, raw := t.screen.(*rawScreen); raw {
		return true
	}
	_, terminal := terminalOf(t.screen)
	return terminal
}

// stopWait is how long the final message may take after an answer was stopped.
const stopWait = 10 * time.Second

// ask asks one question and prints its answer. Each value of stop asks Butler to stop answering; the second one gives up
// waiting for it.
func (t *talk) ask(ctx context.Context, question, localID string, stop <-chan struct{}) (client.Answer, error) {
	if err := t.connect(ctx); err != nil {
		return client.Answer{}, err
	}
	t.mu.Lock()
	t.asking = true
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.asking, t.lost = false, false
		t.mu.Unlock()
	}()
	if localID == "" {
		localID = client.NewLocalID()
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	p := &printer{talk: t, accepted: make(chan struct{}), localID: localID, live: t.live()}
	var stopping sync.WaitGroup
	defer stopping.Wait()
	done := make(chan struct{})
	defer close(done)
	stopping.Go(func() { t.obeyStop(ctx, giveUp, p, stop, done) })
	q := client.Question{LocalID: localID, ConversationID: t.conversation, Text: question}
	answer, err := t.feed.Ask(ctx, q, p)
	if err != nil {
		p.breakLine()
		if ctx.Err() != nil {
			err = errInterrupted
		}
		return client.Answer{}, err
	}
	t.conversation = answer.ConversationID
	p.final(answer)
	return answer, nil
}

// obeyStop waits for Ctrl-C until done.
func (t *talk) obeyStop(ctx context.Context, giveUp func(error), p *printer, stop <-chan struct{}, done <-chan struct{}) {
	select {
	case <-stop:
	case <-done:
		return
	case <-ctx.Done():
		return
	}
	late := time.NewTimer(stopWait)
	defer late.Stop()
	accepted := p.accepted // what is on its way can be stopped when it has arrived
	for {
		select {
		case <-accepted:
			accepted = nil
			call, cancel := context.WithTimeout(ctx, stopWait)
			if err := t.client.Stop(call, p.conversation, p.localID); err != nil && ctx.Err() == nil {
				t.notice("stopping did not work: %s", sentence(err))
			}
			cancel()
		case <-stop: // once more
			giveUp(errInterrupted)
			return
		case <-late.C:
			giveUp(errInterrupted)
			return
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// sameInterrupt is the time within which two interrupts are one.
const sameInterrupt = 200 * time.Millisecond

// once asks one question, for a script or a person in a hurry.
func (t *talk) once(question, localID string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	stop := make(chan struct{}, 2)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		var last time.Time
		for {
			select {
			case <-ended:
				return
			case s := <-signals:
				if s == syscall.SIGTERM {
					cancel()
					return
				}
				// Whoever runs this may pass a signal on that the terminal sent to all: that is not a second Ctrl-C.
				if time.Since(last) < sameInterrupt {
					continue
				}
				last = time.Now()
				select {
				case stop <- struct{}{}:
				default:
				}
			}
		}
	}()
	answer, err := t.ask(ctx, question, localID, stop)
	if err != nil {
		return err
	}
	if answer.Failed() {
		if !t.app.json {
			fmt.Fprintf(t.app.err, "butler: %s\n", notWhole(answer))
		}
		return errReported
	}
	return nil
}

func notWhole(answer client.Answer) string {
	if answer.Status == "stopped" {
		return "the answer was stopped"
	}
	if answer.Reason == "" {
		return "the answer failed"
	}
	return "the answer failed: " + oneLine(answer.Reason)
}

// errLeave ends a conversation.
var errLeave = errors.New("leave")

// command does what a line that begins with a slash says.
func (t *talk) command(ctx context.Context, line string) error {
	name, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	arg = strings.TrimSpace(arg)
	switch name {
	case "/quit", "/exit", "/q":
		return errLeave
	case "/new":
		if err := t.begin(ctx); err != nil {
			return err
		}
		fmt.Fprintf(t.screen, "New conversation %d.\n", t.conversation)
	case "/open":
		id, err := idArg(arg)
		if err != nil {
			return usagef("/open needs the number of a conversation, which /list shows")
		}
		if _, err := t.client.Messages(ctx, id, 0, 1); err != nil {
			return err
		}
		t.conversation = id
		fmt.Fprintf(t.screen, "Conversation %d.\n", id)
	case "/list":
		page, err := t.client.Threads(ctx, client.ThreadFilter{})
		if err != nil {
			return err
		}
		for _, thread := range page.Items[:min(len(page.Items), 20)] {
			fmt.Fprintf(t.screen, "%6d  %s  %s\n", thread.ID, when(thread.LastMessageAt), oneLine(threadTitle(thread)))
		}
	default:
		fmt.Fprint(t.screen, chatHelp)
	}
	return nil
}

const chatHelp = `/new           begin a new conversation
/list          show your conversations
/open NUMBER   go on with one of them
/quit          leave (also Ctrl-D)
Enter sends, Alt-Enter is a new line, Ctrl-C stops an answer. To begin a message with a slash, write //.
`

// message turns a line into what is sent; command says that it is one.
func message(line string) (text string, command bool) {
	if rest, ok := strings.CutPrefix(line, "//"); ok {
		return "/" + rest, false
	}
	return line, strings.HasPrefix(line, "/")
}
