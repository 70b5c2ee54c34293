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
	"sync/atomic"
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
bring back what was said before. What you enter while an answer is awaited is sent at once: approve a command, or
write what a program asks for. Ctrl-C clears the line; with an empty line it stops the oldest answer that is awaited
(twice: no longer waits for it), and leaves when there is none, as Ctrl-D does. Slash words such as /shell and /help
are Butler's; /new, /list, /open and /quit are this terminal's, and /chat shows them.

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
	app    *app
	client *client.Client
	feed   *client.Feed // nil until it is needed
	screen io.Writer    // in a conversation a *terminal.Editor

	mu           sync.Mutex
	conversation int64 // 0 for the default one
	lost         bool  // the connection is lost and that was said
	asking       int   // questions that are not answered

	printing sync.Mutex // of what follows, and of the order on the screen
	speaker  *printer   // whose text was shown last
	begun    bool       // something stands in the current line of a screen that is no editor
}

func (t *talk) close() {
	if t.feed != nil {
		t.feed.Close()
	}
}

// thread gives the conversation; 0 for the default one.
func (t *talk) thread() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conversation
}

func (t *talk) goTo(conversation int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conversation = conversation
}

// begin makes a new conversation.
func (t *talk) begin(ctx context.Context) error {
	thread, err := t.client.NewThread(ctx, "")
	if err == nil {
		t.goTo(thread.ID)
	}
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
	if t.asking == 0 {
		return // nobody waits; it comes back by itself
	}
	t.lost = true
	t.notice("%s", t.app.say("connection lost, trying again…", "连接已断开，正在重试……"))
}

func (t *talk) connectionBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost {
		t.lost = false
		t.notice("%s", t.app.say("connected again", "已重新连接"))
	}
}

// stopWait is how long the final message may take after an answer was stopped.
const stopWait = 10 * time.Second

// asked is one question. Each value of stop asks Butler to stop answering; the second one gives up waiting for it.
type asked struct {
	text     string
	localID  string // "" for a new one
	stop     <-chan struct{}
	accepted func()               // nil, or told when the question is in the log
	echoed   func(written string) // nil, or told how it stands there
}

// ask asks a question in a conversation and prints its answer. Several may be asked at once.
func (t *talk) ask(ctx context.Context, conversation int64, q asked) (client.Answer, error) {
	if err := t.connect(ctx); err != nil {
		return client.Answer{}, err
	}
	t.mu.Lock()
	t.asking++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		if t.asking--; t.asking == 0 {
			t.lost = false
		}
		t.mu.Unlock()
	}()
	if q.localID == "" {
		q.localID = client.NewLocalID()
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	p := &printer{talk: t, asked: q, accepted: make(chan struct{}), live: t.live()}
	var stopping sync.WaitGroup
	defer stopping.Wait()
	done := make(chan struct{})
	defer close(done)
	stopping.Go(func() { t.obeyStop(ctx, giveUp, p, q.stop, done) })
	answer, err := t.feed.Ask(ctx, client.Question{LocalID: q.localID, ConversationID: conversation, Text: q.text}, p)
	if err != nil {
		t.endLine()
		if ctx.Err() != nil {
			err = errInterrupted
		}
		return client.Answer{}, err
	}
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
			if err := t.client.Stop(call, p.conversation, p.asked.localID); err != nil && ctx.Err() == nil {
				t.notice(t.app.say("stopping did not work: %s", "停止失败：%s"), t.app.sentence(err))
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
	var interrupted atomic.Bool
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
				interrupted.Store(true)
				select {
				case stop <- struct{}{}:
				default:
				}
			}
		}
	}()
	answer, err := t.ask(ctx, t.thread(), asked{text: question, localID: localID, stop: stop})
	if err != nil {
		return err
	}
	if !answer.Failed() {
		return nil
	}
	if !t.app.json {
		fmt.Fprintf(t.app.err, "butler: %s\n", t.app.notWhole(answer))
	}
	if interrupted.Load() {
		return errors.Join(errReported, errInterrupted)
	}
	return errReported
}

func (a *app) notWhole(answer client.Answer) string {
	if answer.Status == "stopped" {
		return a.say("the answer was stopped", "回答已停止")
	}
	if answer.Reason == "" {
		return a.say("the answer failed", "回答失败")
	}
	return a.say("the answer failed: ", "回答失败：") + oneLine(answer.Reason)
}

// errLeave ends a conversation.
var errLeave = errors.New("leave")

// command does what a line says that is for this terminal; known is false for every other one, which is Butler's.
func (t *talk) command(ctx context.Context, line string) (known bool, err error) {
	name, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	arg = strings.TrimSpace(arg)
	switch name {
	case "/quit":
		return true, errLeave
	case "/new":
		if err := t.begin(ctx); err != nil {
			return true, err
		}
		t.display(fmt.Sprintf(t.app.say("New conversation %d.\n", "新会话 %d。\n"), t.thread()))
	case "/open":
		id, err := idArg(arg)
		if err != nil {
			return true, usagef("%s", t.app.say("/open needs the number of a conversation, which /list shows", "/open 需要会话编号，用 /list 查看"))
		}
		if _, err := t.client.Messages(ctx, id, 0, 1); err != nil {
			return true, err
		}
		t.goTo(id)
		t.display(fmt.Sprintf(t.app.say("Conversation %d.\n", "会话 %d。\n"), id))
	case "/list":
		page, err := t.client.Threads(ctx, client.ThreadFilter{})
		if err != nil {
			return true, err
		}
		var b strings.Builder
		for _, thread := range page.Items[:min(len(page.Items), 20)] {
			fmt.Fprintf(&b, "%6d  %s  %s\n", thread.ID, when(thread.LastMessageAt), oneLine(t.app.threadTitle(thread)))
		}
		b.WriteString(t.app.say("* is the one that chat opens with.\n", "* 是聊天默认打开的会话。\n"))
		t.display(b.String())
	case "/chat":
		t.display(t.app.say(chatHelp, chatHelpZH))
	default:
		return false, nil
	}
	return true, nil
}

const chatHelp = `/new           begin a new conversation
/list          show your conversations
/open NUMBER   go on with one of them
/quit          leave (also Ctrl-D)
/help          what Butler can do; it and every other slash word, such as /shell, is sent to Butler
Enter sends, also while an answer is awaited; Alt-Enter is a new line. Ctrl-C clears the line; in an empty one it stops the
oldest answer that is awaited, and the second time no longer waits for it. What you write while an answer is awaited is not
kept in the history.
`

const chatHelpZH = `/new           开始新会话
/list          列出您的会话
/open 编号     继续其中一个
/quit          离开（也可按 Ctrl-D）
/help          Butler 的功能；它和其他斜杠命令（如 /shell）都会发送给 Butler
回车发送，等待回答时也可以；Alt-回车换行。Ctrl-C 清空当前行；空行时停止最早的未完成回答，再按一次则不再等待它。
等待回答时输入的内容不会记入历史。
`
