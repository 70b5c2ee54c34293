package main

import (
	"bytes"

	"github.com/nats-io/nkeys"
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
