package gateway

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"sync"
	"time"
)

// hijacker gives a WebSocket its connection with small buffers of its own, and a wire that can be corked.
type hijacker struct {
	http.ResponseWriter
	wire *corked
}

// Hijack takes the connection over.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	h.wire = &corked{Conn: conn}
	early, _ := rw.Reader.Peek(rw.Reader.Buffered()) // what is buffered: no error
	reader := bufio.NewReaderSize(h.wire, 1024)
	if len(early) > 0 {
		reader = bufio.NewReaderSize(bytes.NewReader(bytes.Clone(early)), max(1024, len(early)))
		_, _ = reader.Peek(len(early)) // into the buffer, from where websocket.Accept takes it
	}
	if err := rw.Writer.Flush(); err != nil {
		return nil, nil, err
	}
	return h.wire, bufio.NewReadWriter(reader, bufio.NewWriterSize(h.wire, 512)), nil
}

// corked is a connection whose writes can be held together, so that many small frames are one system call. Each real
// write has a deadline.
type corked struct {
	net.Conn
	mu   sync.Mutex
	held *[]byte
}

const maxCorked = 32 << 10

var corks = sync.Pool{New: func() any { b := make([]byte, 0, maxCorked); return &b }}

// cork begins to hold writes together, when on.
func (c *corked) cork(on bool) {
	if !on {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = corks.Get().(*[]byte) //nolint:forcetypeassert // only these are put there
	}
}

// uncork writes what was held.
func (c *corked) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return nil
	}
	held := c.held
	c.held = nil
	defer func() {
		*held = (*held)[:0]
		corks.Put(held)
	}()
	if len(*held) == 0 {
		return nil
	}
	_, err := c.write(*held)
	return err
}

// Write writes p, or holds it.
func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.write(p)
	}
	if len(*c.held)+len(p) > maxCorked {
		if len(*c.held) > 0 {
			_, err := c.write(*c.held)
			*c.held = (*c.held)[:0]
			if err != nil {
				return 0, err
			}
		}
		if len(p) > maxCorked {
			return c.write(p)
		}
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}

func (c *corked) write(p []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
