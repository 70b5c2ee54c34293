// Package sealed keeps what a person answers to a password prompt of their shell out of every log. A shell-runner that sees
// such a prompt makes a key of the moment and announces its public half to the gateways; a gateway seals the answer with it
// before it writes the message. Only that shell-runner can open it, and only until the prompt is gone, since it keeps the
// private half in memory alone.
package sealed

import (
	"crypto/rand"
	"errors"
	"regexp"

	"golang.org/x/crypto/nacl/box"

	"github.com/butlerhub/butler/pkg/approval"
)

// Text stands in the log in the place of what was sealed.
const Text = "••••••"

// Subjects of plain NATS; see proto/asyncapi.yaml.
const (
	// Changed tells every gateway that there is a prompt, or no more.
	Changed = "butler.prompt.changed"
	// Asked asks every shell-runner to announce its prompts again.
	Asked = "butler.prompt.asked"
)

// command is how a message begins that people send while a program asks: /cancel, /key C-c. Any other word with a slash may
// be a password.
var command = regexp.MustCompile(`^\s*/(shell|interactive|nl|force-nl|key|kill|screen|pwd|cancel|jobs|help)(\s|$)`)

// ForButler says whether a message is for Butler although a program in the shell asks for a password: a slash word of the
// shell, or a decision that names its request. All else may be the password.
func ForButler(text string) bool {
	said, ok := approval.ParseDecision(text)
	return command.MatchString(text) || ok && said.Code != ""
}

// Key opens what was sealed for it. It must not be stored.
type Key struct{ public, private *[32]byte }

// NewKey makes a key.
func NewKey() (*Key, error) {
	public, private, err := box.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Key{public, private}, nil
}

// Public gives the half that is announced, 32 bytes.
func (k *Key) Public() []byte { return k.public[:] }

// Open gives the text of a box; the error says that it was sealed for another key, or changed.
func (k *Key) Open(sealed []byte) (string, error) {
	text, ok := box.OpenAnonymous(nil, sealed, k.public, k.private)
	if !ok {
		return "", errors.New("sealed: not for this key")
	}
	return string(text), nil
}

// Seal seals text for the key with the public half given.
func Seal(text string, public []byte) ([]byte, error) {
	if len(public) != 32 {
		return nil, errors.New("sealed: a key has 32 bytes")
	}
	return box.SealAnonymous(nil, []byte(text), (*[32]byte)(public), rand.Reader)
}
