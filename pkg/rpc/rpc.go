// Package rpc is gRPC between Butler's services: servers and clients that show each other the internal token, and
// certificates where there are any; that bound sizes, times and counts; that carry trace context; and whose errors are
// pkg/fault on both sides.
//
// In one process (`butler up`) a Local stands for the network, and everything else is the same code.
package rpc

import (
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// MaxMessage bounds one message in either direction, in bytes.
	MaxMessage = 4 << 20
	// DefaultTimeout is given to a unary call that has no deadline, on both sides.
	DefaultTimeout = 30 * time.Second

	maxHeaderBytes = 16 << 10
	maxStreams     = 1000 // calls at a time on one connection
	keepaliveTime  = 30 * time.Second
	keepaliveWait  = 10 * time.Second
	// A connection is renewed after this time, so that clients look up the replicas anew and new ones get their share.
	connectionAge = 5 * time.Minute
	// A call may outlive its connection's age by this.
	connectionGrace = time.Hour
)

// Security is how services know each other. A server needs a token, certificates, or both; a client shows whatever it
// has. The three files go together.
type Security struct {
	// Token is INTERNAL_SERVICE_TOKEN, at least 32 characters.
	Token string
	// CertFile and KeyFile are this service's own certificate; they are read again when they change. CAFile has the
	// authorities of the others' certificates; it is read once.
	CertFile, KeyFile, CAFile string
}

const minToken = 32

func (s Security) check() error {
	if s.Token != "" && len(s.Token) < minToken {
		return fault.New(fault.Invalid, "INTERNAL_SERVICE_TOKEN must have at least %d characters", minToken)
	}
	files := 0
	for _, f := range []string{s.CertFile, s.KeyFile, s.CAFile} {
		if f != "" {
			files++
		}
	}
	if files != 0 && files != 3 {
		return fault.New(fault.Invalid, "set all of BUTLER_TLS_CERT, BUTLER_TLS_KEY and BUTLER_TLS_CA, or none")
	}
	if s.Token == "" && files == 0 {
		return fault.New(fault.Invalid, "INTERNAL_SERVICE_TOKEN is not set: set it to the same %d or more characters in "+
			"every service (openssl rand -hex 32)", minToken)
	}
	return nil
}

func (s Security) tls() bool { return s.CertFile != "" }
