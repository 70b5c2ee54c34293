package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/config"
)

// The first key of the file signs; others, private or public, signed before.
func TestTheFileOfSigningKeys(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "approval.key")
	s := config.Settings{}
	s.Approval.KeyFile = file
	first, earlier, err := approvalSigner(s)
	require.NoError(t, err)
	require.Empty(t, earlier)
	again, _, err := approvalSigner(s)
	require.NoError(t, err)
	require.Equal(t, first.KeyID(), again.KeyID())

	made, err := os.ReadFile(file)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(first.Public())
	require.NoError(t, err)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	write := func(parts ...[]byte) {
		var all []byte
		for _, p := range parts {
			all = append(all, p...)
		}
		require.NoError(t, os.WriteFile(file, all, 0o600))
	}
	for _, old := range [][]byte{public, made} {
		write(private, old)
		now, earlier, err := approvalSigner(s)
		require.NoError(t, err)
		require.NotEqual(t, first.KeyID(), now.KeyID())
		require.Equal(t, []ed25519.PublicKey{first.Public()}, earlier)
	}
	for says, parts := range map[string][][]byte{
		"must be private":        {public, private},
		"holds no PEM block":     {[]byte("nothing")},
		"key 2":                  {private, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})},
		"neither a private key":  {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})},
		"cannot be read or made": nil,
	} {
		write(parts...)
		if parts == nil {
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Mkdir(file, 0o700))
		}
		_, _, err := approvalSigner(s)
		require.ErrorContains(t, err, says)
		require.NoError(t, os.RemoveAll(file))
	}
}
