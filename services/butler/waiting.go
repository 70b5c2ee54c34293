package main

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// waitingRoom answers on the gateway's address while the gateway waits for what it needs: /health and /ready as ever,
// everything else 503. Then it hands the address over without closing it.
type waitingRoom struct {
	p      *process
	held   *heldListener
	server *http.Server
	done   chan struct{}
}

func (p *process) serveWhileWaiting(l net.Listener) *waitingRoom {
	ops := p.tel.Handler()
	mux := http.NewServeMux()
	for _, path := range []string{"/health", "/ready", "/metrics"} {
		mux.Handle("GET "+path, ops)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{
			"error": "Butler is starting; try again in a moment", "code": string(fault.Unavailable),
		})
	})
	w := &waitingRoom{p: p, held: &heldListener{Listener: l}, done: make(chan struct{}), server: &http.Server{
		Handler:           http.MaxBytesHandler(mux, 64<<10),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}}
	w.server.SetKeepAlivesEnabled(false) // the next request is the gateway's
	go func() {
		defer close(w.done)
		_ = w.server.Serve(w.held) // it ends when the listener is handed over or closed
	}()
	p.onClose(func() { _ = w.server.Close() })
	return w
}

// handOver stops answering and gives the listener.
func (w *waitingRoom) handOver() (net.Listener, error) {
	_ = w.server.Close()
	<-w.done
	if t, ok := w.held.Listener.(*net.TCPListener); ok {
		if err := t.SetDeadline(time.Time{}); err != nil {
			return nil, fault.Wrap(err, fault.Internal, "the gateway's address cannot be used any more")
		}
	}
	return w.held.Listener, nil
}

// heldListener ends Accept at Close and leaves the listener open.
type heldListener struct {
	net.Listener
	closed atomic.Bool
}

func (h *heldListener) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if h.closed.Load() {
		if err == nil {
			_ = c.Close() // it came in the last moment; its client tries again
		}
		return nil, net.ErrClosed
	}
	return c, err
}

func (h *heldListener) Close() error {
	h.closed.Store(true)
	if t, ok := h.Listener.(*net.TCPListener); ok {
		return t.SetDeadline(time.Now()) // wakes Accept
	}
	return h.Listener.Close()
}
