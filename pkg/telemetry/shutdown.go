package telemetry

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// unusedFor is how long a connection on which no request came yet may still bring one when its server stops.
const unusedFor = 300 * time.Millisecond

// Graceful prepares s, before it serves, for being stopped by the returned function, which is http.Server.Shutdown but for
// one thing: connections on which no request ever came (browsers and proxies open them in advance) are closed after 300 ms.
// Shutdown itself waits five seconds for them. It takes the server's ConnState.
func Graceful(s *http.Server) (shutdown func(context.Context) error) {
	var mu sync.Mutex
	unused := map[net.Conn]struct{}{}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateNew {
			unused[c] = struct{}{}
		} else {
			delete(unused, c)
		}
	}
	return func(ctx context.Context) error {
		end := time.AfterFunc(unusedFor, func() {
			mu.Lock()
			defer mu.Unlock()
			for c := range unused {
				_ = c.Close() // nothing was written to it
			}
		})
		defer end.Stop()
		return s.Shutdown(ctx)
	}
}
