package bus

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/fault"
)

// This file lets agents in. The server asks agent-registry about each connection that is not a service's ("auth callout"),
// and the registry answers with what the agent may do. So the registry's tables are the only place where credentials are
// known: no list in the server has to agree with them.

const (
	// kickPage is how many connections the server is asked for at a time.
	kickPage = 1024
	// kickTimeout bounds ending the connections of an agent.
	kickTimeout = 5 * time.Second
	// admitAtOnce bounds the connections that are judged at the same time.
	admitAtOnce = 64
)

// Credentials are what an agent signs in with.
type Credentials struct {
	Public string // public key of its nkey: what the registry keeps
	File   string // content of a .creds file with the private key, the agent's secret
}

// NewCredentials makes the credentials of an agent. Clients show name to the server, and everything is looked up by the
// public key. issuer is the seed of the key that signs them.
func NewCredentials(issuer, name string) (Credentials, error) {
	signer, err := nkeys.FromSeed([]byte(issuer))
	if err != nil {
		return Credentials{}, fmt.Errorf("bus: the key for agents: %w", err)
	}
	defer signer.Wipe()
	pair, err := nkeys.CreateUser()
	if err != nil {
		return Credentials{}, fmt.Errorf("bus: %w", err)
	}
	seed, public, err := seedAndPublic(pair)
	if err != nil {
		return Credentials{}, err
	}
	claims := jwt.NewUserClaims(public)
	claims.Name = name
	token, err := claims.Encode(signer)
	if err != nil {
		return Credentials{}, fmt.Errorf("bus: %w", err)
	}
	file, err := jwt.FormatUserConfig(token, []byte(seed))
	if err != nil {
		return Credentials{}, fmt.Errorf("bus: %w", err)
	}
	return Credentials{Public: public, File: string(file)}, nil
}

// Knock is a connection that wants in.
type Knock struct {
	// Key is the public key that the client says it has, or empty: a server that is configured like ours does not pass on
	// the key of a .creds file, only the signature that was made with it.
	Key string
	// Name is what the client calls its connection: a hint, which anybody can give.
	Name string

	nonce, signature []byte
}

// Holds says whether the client has the private key that belongs to public: it has signed the server's nonce with it.
func (k Knock) Holds(public string) bool {
	if !nkeys.IsValidPublicUserKey(public) || len(k.nonce) == 0 {
		return false
	}
	key, err := nkeys.FromPublicKey(public)
	return err == nil && key.Verify(k.nonce, k.signature) == nil
}

// Judge gives what a connection may do in the account of agents, or ErrStranger. It must not let in whom no key Holds for.
type Judge func(ctx context.Context, k Knock) (ServiceUser, error)

// Admit answers the server's questions about who is let in, until stop is called. Replicas share the questions. issuer is the
// seed of the key that the server believes.
func (b *Bus) Admit(issuer string, judge Judge) (stop func(), err error) {
	signer, err := nkeys.FromSeed([]byte(strings.TrimSpace(issuer)))
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the key for agents is no nkey seed of an account")
	}
	if public, err := signer.PublicKey(); err != nil || !nkeys.IsValidPublicAccountKey(public) {
		return nil, fault.New(fault.Invalid, "the key for agents is no nkey seed of an account")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	group.SetLimit(admitAtOnce)
	sub, err := b.nc.QueueSubscribe(authSubject, "registry", func(m *nats.Msg) {
		group.Go(func() error {
			answer, err := admit(ctx, signer, string(m.Data), judge)
			if err != nil {
				b.log.Warn("a question about who is let in cannot be answered", "error", err)
				return nil
			}
			if err := m.Respond([]byte(answer)); err != nil {
				b.log.Debug("an answer about who is let in was not sent", "error", err)
			}
			return nil
		})
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("bus: listening for who wants in: %w", err)
	}
	return func() {
		_ = sub.Unsubscribe()
		cancel()
		_ = group.Wait()
	}, nil
}

// ErrStranger is what a judge says of a key that is not let in.
var ErrStranger = errors.New("these credentials are not known, or not valid any more")

func admit(ctx context.Context, signer nkeys.KeyPair, request string, judge Judge) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // the server waits about as long
	defer cancel()
	asked, err := jwt.DecodeAuthorizationRequestClaims(request)
	if err != nil {
		return "", err
	}
	answer := jwt.NewAuthorizationResponseClaims(asked.UserNkey)
	answer.Audience = asked.Server.ID
	user, err := judgeOne(ctx, asked, judge)
	if err == nil {
		answer.Jwt, err = userToken(signer, asked.UserNkey, user)
	}
	if err != nil {
		answer.Jwt, answer.Error = "", "not let in" // why is nobody's business who is not let in
	}
	return answer.Encode(signer)
}

func judgeOne(ctx context.Context, asked *jwt.AuthorizationRequestClaims, judge Judge) (ServiceUser, error) {
	o := asked.ConnectOptions
	signature, err := base64.RawURLEncoding.DecodeString(o.SignedNonce)
	if err != nil {
		if signature, err = base64.StdEncoding.DecodeString(o.SignedNonce); err != nil {
			return ServiceUser{}, ErrStranger
		}
	}
	if len(signature) == 0 || asked.ClientInformation.Nonce == "" {
		return ServiceUser{}, ErrStranger
	}
	return judge(ctx, Knock{Key: o.Nkey, Name: o.Name, nonce: []byte(asked.ClientInformation.Nonce), signature: signature})
}

// userToken says what a connection may do.
func userToken(signer nkeys.KeyPair, connection string, user ServiceUser) (string, error) {
	claims := jwt.NewUserClaims(connection)
	claims.Name = user.Service
	claims.Audience = AgentsAccount
	claims.Permissions.Pub.Allow.Add(user.Publish...)
	claims.Permissions.Sub.Allow.Add(user.Subscribe...)
	claims.Limits.Subs = 100
	claims.Limits.Payload = 1 << 20
	return claims.Encode(signer)
}

// Kick ends every connection of an agent, on whichever server it is, and says how many there were. name is the Service of
// its ServiceUser. It must have lost its rights before, or it comes back.
func (b *Bus) Kick(ctx context.Context, name string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, kickTimeout)
	defer cancel()
	kicked := 0
	for offset := 0; ; offset += kickPage {
		page, more, err := b.agentConnections(ctx, offset)
		if err != nil {
			return kicked, fault.Wrap(err, fault.Unavailable, "the connections of an agent could not be ended now")
		}
		for _, c := range page {
			if c.name != name {
				continue
			}
			request, err := json.Marshal(map[string]uint64{"cid": c.cid})
			if err != nil {
				return kicked, err
			}
			if _, err := b.nc.RequestWithContext(ctx, kickSubject+c.server, request); err != nil {
				return kicked, fault.Wrap(err, fault.Unavailable, "the connections of an agent could not be ended now")
			}
			kicked++
		}
		if !more {
			return kicked, nil
		}
	}
}

type agentConnection struct {
	server, name string
	cid          uint64
}

// agentConnections asks all servers for a page of the connections of agents. Each server answers for itself, and how many
// there are is not known: the answers end when none came for a while.
func (b *Bus) agentConnections(ctx context.Context, offset int) (out []agentConnection, more bool, err error) {
	request, err := json.Marshal(map[string]any{"auth": true, "limit": kickPage, "offset": offset})
	if err != nil {
		return nil, false, err
	}
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := b.nc.PublishRequest(connectionsSubject, inbox, request); err != nil {
		return nil, false, err
	}
	wait := 2 * time.Second
	for answers := 0; ; answers++ {
		one, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(one)
		cancel()
		if err != nil {
			if answers > 0 && ctx.Err() == nil {
				return out, more, nil
			}
			return nil, false, err
		}
		wait = 150 * time.Millisecond
		var answer struct {
			Server struct {
				ID string `json:"id"`
			} `json:"server"`
			Error *struct {
				Description string `json:"description"`
			} `json:"error"`
			Data struct {
				Total       int `json:"total"`
				Connections []struct {
					CID  uint64 `json:"cid"`
					Name string `json:"authorized_user"`
				} `json:"connections"`
			} `json:"data"`
		}
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			return nil, false, err
		}
		if answer.Error != nil {
			return nil, false, errors.New(answer.Error.Description)
		}
		for _, c := range answer.Data.Connections {
			out = append(out, agentConnection{answer.Server.ID, c.Name, c.CID})
		}
		more = more || answer.Data.Total > offset+kickPage
	}
}

// Serve answers requests on a plain subject, shared with the other replicas, until stop is called. answer gives nil for no
// answer.
func (b *Bus) Serve(subject string, answer func(ctx context.Context, ev Event) []byte) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	group.SetLimit(admitAtOnce)
	sub, err := b.nc.QueueSubscribe(subject, b.service, func(m *nats.Msg) {
		group.Go(func() error {
			ev := stored("", m.Subject, 0, time.Now(), m.Header, m.Data).Event
			if out := answer(ctx, ev); out != nil && m.Reply != "" {
				if err := m.Respond(out); err != nil {
					b.log.Debug("an answer was not sent", "subject", subject, "error", err)
				}
			}
			return nil
		})
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("bus: serving %s: %w", subject, err)
	}
	return func() {
		_ = sub.Unsubscribe()
		cancel()
		_ = group.Wait()
	}, nil
}
