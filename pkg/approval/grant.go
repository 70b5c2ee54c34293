package approval

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Grant is the permission to do one effect once.
type Grant struct {
	ID        string  `json:"jti"`                // the approval
	Effect    string  `json:"effect"`             // digest of the effect
	Kind      string  `json:"kind"`               // of the effect
	Risk      string  `json:"risk"`               // level that was judged; an executor that judges a higher one asks again
	Hardline  bool    `json:"hardline,omitempty"` // what no chat may allow was allowed by an explicit rule
	Host      string  `json:"host,omitempty"`     // which executor
	Session   string  `json:"session,omitempty"`  // which shell session
	Requester int64   `json:"sub,string"`         // for whom
	Approvers []int64 `json:"approvers"`          // who said yes; empty when the policy did
	RunBy     int64   `json:"exp"`                // Unix seconds; it must begin before
	Issued    int64   `json:"iat"`                // Unix seconds
	Audience  string  `json:"aud"`                // audience
	Form      int     `json:"butler_grant_form"`  // 1
}

const (
	audience = "butler-executor"
	form     = 1
	maxGrant = 8 << 10
)

// ErrGrant is in the chain of every error of Verify.
var ErrGrant = errors.New("the grant is not valid")

// KeyID names a public key: the first 16 hex digits of its SHA-256.
func KeyID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return hex.EncodeToString(sum[:8])
}

// Signer signs grants. It is safe for concurrent use.
type Signer struct {
	key    ed25519.PrivateKey
	id     string
	signer jose.Signer
}

// NewSigner makes a signer of a private key.
func NewSigner(key ed25519.PrivateKey) (*Signer, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, fmt.Errorf("approval: the signing key has %d bytes, not %d", len(key), ed25519.PrivateKeySize)
	}
	id := KeyID(key.Public().(ed25519.PublicKey))
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: key, KeyID: id}},
		(&jose.SignerOptions{}).WithType("butler-grant+jws"))
	if err != nil {
		return nil, fmt.Errorf("approval: %w", err)
	}
	return &Signer{key: key, id: id, signer: s}, nil
}

// KeyID names the key.
func (s *Signer) KeyID() string { return s.id }

// Public gives the public key.
func (s *Signer) Public() ed25519.PublicKey { return s.key.Public().(ed25519.PublicKey) }

// Grant signs g as a compact JWS with EdDSA.
func (s *Signer) Grant(g Grant) (string, error) {
	g.Audience, g.Form = audience, form
	data, err := json.Marshal(g)
	if err != nil {
		return "", fmt.Errorf("approval: %w", err)
	}
	jws, err := s.signer.Sign(data)
	if err != nil {
		return "", fmt.Errorf("approval: signing: %w", err)
	}
	return jws.CompactSerialize()
}

// Sign signs a message of the audit chain.
func (s *Signer) Sign(message []byte) []byte { return ed25519.Sign(s.key, message) }

// Keys are the public keys by id. Replace the map, do not change it.
type Keys map[string]ed25519.PublicKey

// Verify checks a grant's signature, form and time, and gives what it permits. It does not check that the effect is the
// one meant, nor that the grant was not used: the executor does.
func (k Keys) Verify(token string, now time.Time) (Grant, error) {
	if len(token) > maxGrant {
		return Grant{}, fmt.Errorf("%w: it is too long", ErrGrant)
	}
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return Grant{}, fmt.Errorf("%w: %w", ErrGrant, err)
	}
	key, known := k[jws.Signatures[0].Header.KeyID]
	if !known {
		return Grant{}, fmt.Errorf("%w: signed with an unknown key", ErrGrant)
	}
	data, err := jws.Verify(key)
	if err != nil {
		return Grant{}, fmt.Errorf("%w: %w", ErrGrant, err)
	}
	var g Grant
	if err := json.Unmarshal(data, &g); err != nil {
		return Grant{}, fmt.Errorf("%w: %w", ErrGrant, err)
	}
	switch {
	case g.Form != form || g.Audience != audience:
		return Grant{}, fmt.Errorf("%w: it is no grant of this form", ErrGrant)
	case !ValidID(g.ID) || g.Effect == "":
		return Grant{}, fmt.Errorf("%w: it names no effect", ErrGrant)
	case now.After(time.Unix(g.RunBy, 0)):
		return Grant{}, fmt.Errorf("%w: it had to be used before %s", ErrGrant, time.Unix(g.RunBy, 0).UTC().Format(time.RFC3339))
	case now.Add(time.Minute).Before(time.Unix(g.Issued, 0)):
		return Grant{}, fmt.Errorf("%w: it was issued in the future; compare the clocks of the hosts", ErrGrant)
	}
	return g, nil
}
