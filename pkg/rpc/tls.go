package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/butlerhub/butler/pkg/fault"
)

func (s Security) serverCredentials() (credentials.TransportCredentials, error) {
	if !s.tls() {
		return insecure.NewCredentials(), nil
	}
	own, others, err := s.load()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      others,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.get() },
	}), nil
}

func (s Security) clientCredentials() (credentials.TransportCredentials, error) {
	if !s.tls() {
		return insecure.NewCredentials(), nil
	}
	own, others, err := s.load()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:           tls.VersionTLS13,
		RootCAs:              others,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get() },
	}), nil
}

func (s Security) load() (*keyPair, *x509.CertPool, error) {
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Invalid, "BUTLER_TLS_CA cannot be read")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fault.New(fault.Invalid, "BUTLER_TLS_CA: %s holds no PEM certificate", s.CAFile)
	}
	own := &keyPair{certFile: s.CertFile, keyFile: s.KeyFile}
	if _, err := own.get(); err != nil {
		return nil, nil, fault.Wrap(err, fault.Invalid, "BUTLER_TLS_CERT and BUTLER_TLS_KEY cannot be used together")
	}
	return own, pool, nil
}

// keyPair reads a certificate again when its file has changed, so that renewing it needs no restart. While the files do
// not fit together (one of them is being replaced) the last good pair is used.
type keyPair struct {
	certFile, keyFile string

	mu      sync.Mutex
	pair    *tls.Certificate
	changed [2]time.Time
}

func (k *keyPair) get() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var changed [2]time.Time
	for i, name := range []string{k.certFile, k.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return k.last(err)
		}
		changed[i] = info.ModTime()
	}
	if k.pair != nil && changed == k.changed {
		return k.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return k.last(err)
	}
	k.pair, k.changed = &pair, changed
	return k.pair, nil
}

func (k *keyPair) last(err error) (*tls.Certificate, error) {
	if k.pair != nil {
		return k.pair, nil
	}
	return nil, err
}
