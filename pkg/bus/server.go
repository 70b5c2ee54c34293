package bus

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/bcrypt"
)

// ServerOptions says how the embedded server runs.
type ServerOptions struct {
	// Dir is where JetStream keeps its streams.
	Dir string
	// Addr is host:port to listen on, for example 127.0.0.1:4222; empty means no listening, only connections within the
	// process.
	Addr string
	// Sync is how often what was written is synced to disk. 0 means before each acknowledgement, which alone survives a
	// power cut.
	Sync time.Duration
	// Operator is the password of the user "operator", who may do everything over the network; empty lets nobody in.
	Operator string
	// Log takes the server's messages; nil discards them.
	Log *slog.Logger
}

// Server is a NATS server with JetStream in this process.
type Server struct {
	srv       *server.Server
	password  string // of the user that this process connects as
	issuer    string // seed of the key that agent-registry signs with who is let in
	positions *positions
	closed    sync.Once
}

// StartServer starts an embedded server and returns once it takes connections.
func StartServer(o ServerOptions) (*Server, error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	internal := hex.EncodeToString(secret)
	if o.Operator == "" {
		o.Operator = internal
	}
	opts := &server.Options{
		ServerName:         "butler",
		JetStream:          true,
		StoreDir:           o.Dir,
		JetStreamMaxMemory: 256 << 20,
		JetStreamMaxStore:  1 << 50, // the disk is the limit
		SyncAlways:         o.Sync == 0,
		SyncInterval:       o.Sync,
		DontListen:         o.Addr == "",
		NoSigs:             true,
		MaxPayload:         1 << 20,
		MaxPending:         64 << 20,
		WriteDeadline:      10 * time.Second,
		AlwaysEnableNonce:  true, // agents sign it
	}
	seed, issuer, err := NewIssuerKey()
	if err != nil {
		return nil, err
	}
	var users strings.Builder
	for name, password := range map[string]string{"butler": internal, "operator": o.Operator} {
		// Hashed because the server wants it so; the cost is for guessable passwords, which these are not.
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			return nil, fmt.Errorf("bus: the password of the NATS user %s: %w", name, err)
		}
		fmt.Fprintf(&users, "      { user: %s, password: %q }\n", name, hash)
	}
	if err := opts.ProcessConfigString(accountsConfig(users.String(), []string{"butler", "operator"}, issuer)); err != nil {
		return nil, fmt.Errorf("bus: the accounts of the embedded NATS server: %w", err)
	}
	if err := adoptGlobal(o.Dir); err != nil {
		return nil, err
	}
	if o.Sync == 0 {
		opts.SyncInterval = 2 * time.Minute // of what sync-always leaves: metadata
	}
	if o.Addr != "" {
		host, port, err := net.SplitHostPort(o.Addr)
		if err != nil {
			return nil, fmt.Errorf("bus: address %q: %w", o.Addr, err)
		}
		if opts.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("bus: address %q: %w", o.Addr, err)
		}
		if opts.Port == 0 {
			opts.Port = server.RANDOM_PORT
		}
		opts.Host = host
		if opts.Port > 0 { // the server itself only logs a taken port
			l, err := net.Listen("tcp", o.Addr)
			if err != nil {
				return nil, err
			}
			_ = l.Close()
		}
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	if o.Log != nil {
		srv.SetLoggerV2(serverLog{o.Log}, false, false, false)
	}
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("bus: the embedded NATS server did not become ready within 30 s")
	}
	s := &Server{srv: srv, password: internal, issuer: seed}
	if s.positions, err = keepPositions(s, o.Dir, o.Log); err != nil {
		srv.Shutdown()
		return nil, err
	}
	return s, nil
}

// OperatorPassword reads the operator's password from a file of mode 0600 in dir, making it on first use.
func OperatorPassword(dir string) (password, path string, err error) {
	path = filepath.Join(dir, "nats-operator-password")
	data, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(data))) >= 16 {
		return strings.TrimSpace(string(data)), path, nil
	}
	secret := make([]byte, 24)
	if _, err := rand.Read(secret); err != nil {
		return "", "", fmt.Errorf("bus: %w", err)
	}
	password = hex.EncodeToString(secret)
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		return "", "", fmt.Errorf("bus: %w", err)
	}
	return password, path, nil
}

func (s *Server) connectOptions() []nats.Option {
	return []nats.Option{nats.InProcessServer(s.srv), nats.UserInfo("butler", s.password)}
}

// URL is where others reach the server; empty when it does not listen.
func (s *Server) URL() string {
	if s.srv.Addr() == nil {
		return ""
	}
	return "nats://" + s.srv.Addr().String()
}

// Issuer is the seed of the key with which agent-registry signs who is let in.
func (s *Server) Issuer() string { return s.issuer }

// Close stops the server after it has written what it holds.
func (s *Server) Close() {
	s.closed.Do(s.positions.close)
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

// serverLog passes the server's messages on; its notices are details here.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Noticef(f string, v ...any) { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l serverLog) Warnf(f string, v ...any)   { l.log.Warn(fmt.Sprintf(f, v...)) }
func (l serverLog) Fatalf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }
func (l serverLog) Errorf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }
func (l serverLog) Debugf(string, ...any)      {}
func (l serverLog) Tracef(string, ...any)      {}
