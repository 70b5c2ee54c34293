package main

import (
	"bytes"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/butlerhub/butler/pkg/config"
)

// publicKey gives the public key of an nkey seed.
func publicKey(seed []byte) (string, error) {
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// natsOptions are how a command that only looks signs in with the credentials of the settings, like package bus.
func natsOptions(s config.Settings) ([]nats.Option, error) {
	file := s.NATS.Credentials
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, pathCause(err)
	}
	if strings.Contains(string(data), "BEGIN NATS USER JWT") {
		return []nats.Option{nats.UserCredentials(file)}, nil
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(data))
	if err != nil {
		return nil, err
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	return []nats.Option{nats.Nkey(public, pair.Sign)}, nil
}
