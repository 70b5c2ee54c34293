package tmux

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// maxReply bounds what is kept of one command's answer.
const maxReply = 64 << 10

// control is a control-mode client: commands in, answers out, in order. It runs under the session's own user, never as
// root: a tmux server can make its client run programs.
type control struct {
	name string
	wait time.Duration

	mu      sync.Mutex // guards in and the order of waiting
	in      *os.File
	waiting []*reply

	proc   *os.Process
	closed chan struct{} // the client is gone
}

type reply struct {
	done   chan struct{}
	text   strings.Builder
	failed bool
}

// startControl attaches a client. The caller must wait for closed after close.
func startControl(cmd *exec.Cmd, name string, wait time.Duration) (*control, error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		_, _ = inRead.Close(), inWrite.Close()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout = inRead, outWrite
	err = cmd.Start()
	_, _ = inRead.Close(), outWrite.Close()
	if err != nil {
		_, _ = inWrite.Close(), outRead.Close()
		return nil, err
	}
	c := &control{name: name, wait: wait, in: inWrite, proc: cmd.Process, closed: make(chan struct{})}
	go func() {
		c.read(outRead)
		c.mu.Lock()
		_ = c.in.Close()
		for _, r := range c.waiting {
			r.failed = true
			close(r.done)
		}
		c.waiting = nil
		close(c.closed)
		c.mu.Unlock()
		_ = outRead.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	return c, nil
}

// read takes the client's lines. A block is closed only by a line with the numbers of its own beginning: the answer may
// contain what programs printed.
func (c *control) read(r io.Reader) {
	in := bufio.NewReaderSize(r, 64<<10)
	var current *reply
	var ours, open bool
	var stamp string
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSuffix(line, "\n")
		if !open {
			if rest, ok := strings.CutPrefix(line, "%begin "); ok {
				open, stamp = true, rest
				// The last number is 1 for what this client asked; hooks and the attaching itself have 0.
				if ours = strings.HasSuffix(rest, " 1"); ours {
					current = c.next()
				}
			} else if strings.HasPrefix(line, "%exit") {
				return
			}
			continue
		}
		end, isEnd := strings.CutPrefix(line, "%end ")
		if !isEnd {
			end, isEnd = strings.CutPrefix(line, "%error ")
		}
		if isEnd && end == stamp {
			if ours && current != nil {
				current.failed = strings.HasPrefix(line, "%error")
				close(current.done)
			}
			open, current = false, nil
			continue
		}
		if current != nil && current.text.Len()+len(line) < maxReply {
			if current.text.Len() > 0 {
				current.text.WriteByte('\n')
			}
			current.text.WriteString(line)
		}
	}
}

func (c *control) next() *reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return nil
	}
	r := c.waiting[0]
	c.waiting = c.waiting[1:]
	return r
}

// do sends commands, one a line, and waits for all answers; it gives the last one. On a timeout it is not known whether
// they were carried out.
func (c *control) do(ctx context.Context, lines ...string) (string, error) {
	return c.exchange(ctx, len(lines), lines...)
}

// exchange is do for lines that have more answers than there are lines: tmux answers each command that if-shell runs.
func (c *control) exchange(ctx context.Context, answers int, lines ...string) (string, error) {
	replies := make([]*reply, answers)
	for i := range replies {
		replies[i] = &reply{done: make(chan struct{})}
	}
	timer := time.NewTimer(c.wait)
	defer timer.Stop()

	c.mu.Lock()
	select {
	case <-c.closed:
		c.mu.Unlock()
		return "", sessionNotFound(c.name, errors.New("the control client has ended"))
	default:
	}
	c.waiting = append(c.waiting, replies...)
	_ = c.in.SetWriteDeadline(time.Now().Add(c.wait))
	_, err := io.WriteString(c.in, strings.Join(lines, "\n")+"\n")
	c.mu.Unlock()
	if err != nil {
		// A command may have been cut in the middle: nothing after it could be trusted.
		c.close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return "", tmuxTimeout(c.name, c.wait)
		}
		return "", sessionNotFound(c.name, err)
	}
	for _, r := range replies {
		select {
		case <-r.done:
		case <-timer.C:
			return "", tmuxTimeout(c.name, c.wait)
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	for _, r := range replies {
		if r.failed {
			select {
			case <-c.closed:
				return "", sessionNotFound(c.name, errors.New("the control client ended"))
			default:
			}
			return "", tmuxCommand(c.name, r.text.String())
		}
	}
	return replies[len(replies)-1].text.String(), nil
}

// close lets the client go; the server stays.
func (c *control) close() {
	c.mu.Lock()
	_ = c.in.Close()
	c.mu.Unlock()
}

// end is close, and waits; a client whose server hangs is killed.
func (c *control) end() {
	c.close()
	select {
	case <-c.closed:
	case <-time.After(2 * time.Second):
		_ = c.proc.Kill()
		<-c.closed
	}
}
