package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A thousand connections that say nothing cost under 40 MB, the clients' own sockets in this process included.
func TestIdleConnectionsAreCheap(t *testing.T) {
	r := newRig(t)
	addr := strings.TrimPrefix(r.url(), "http://")
	const n = 1000
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range n {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		require.NoError(t, err)
		conns = append(conns, c)
		_, err = fmt.Fprintf(c, "GET /api/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer %s\r\n\r\n", r.admin.token)
		require.NoError(t, err)
		res, err := http.ReadResponse(bufio.NewReaderSize(c, 512), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
		_ = res.Body.Close()
	}
	each := float64(used()-before) / n
	t.Logf("%.1f KB for each connection", each/1e3)
	require.Less(t, each, 40e3)
}
