// Package approval is the service that says who may allow what: it takes requests, applies the policy, takes people's
// decisions, signs grants, and keeps the audit chain. How it all holds together is in docs/explanation/approvals.md.
//
// Every request is one document in the log (butler.approval.<id>), each change one conditional append; nothing waits in
// memory. The files:
//   - policy.go: what the rules say of a request;
//   - request.go, decide.go: a request's way from asked to decided;
//   - book.go: the recent requests, in memory, for lists and codes;
//   - follow.go: what follows from a change: waking who waits, expiring, auditing;
//   - use.go: the last look before an effect;
//   - audit.go, verify.go: the chain;
//   - people.go: who there is.
package approval

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Streams are those that approval declares.
var Streams = []string{bus.ApprovalStream, bus.AuditStream, bus.WorkStream, bus.ParkedStream}

// Settings are the two clocks.
type Settings struct {
	// Timeout is how long a request may be decided. Default 5 minutes, at most MaxTimeout.
	Timeout time.Duration
	// RunTimeout is how long after its decision an effect may begin. Default 5 minutes.
	RunTimeout time.Duration
}

// MaxTimeout bounds Settings.Timeout, so that every pending request is found near the end of the log.
const MaxTimeout = 24 * time.Hour

func (s Settings) withDefaults() Settings {
	if s.Timeout <= 0 {
		s.Timeout = 5 * time.Minute
	}
	s.Timeout = min(s.Timeout, MaxTimeout)
	if s.RunTimeout <= 0 {
		s.RunTimeout = 5 * time.Minute
	}
	return s
}

// Deps are what a Service needs. Bus, People and Signer must be set.
type Deps struct {
	Bus    *bus.Bus
	People butlerv1.PeopleServiceClient
	Signer *approval.Signer
	// Earlier are the keys that signed before: the audit chain has their links. Grants of theirs are not honoured.
	Earlier []ed25519.PublicKey
	// Shells are the shell-runners by host; an approver's edit is inspected there.
	Shells   map[string]butlerv1.ShellServiceClient
	Policy   *Policy // BuiltIn when nil
	Settings Settings
	Log      *slog.Logger          // discards when nil
	Clock    func() time.Time      // time.Now when nil
	Metrics  prometheus.Registerer // none when nil
}

// Service is one replica of approval. Its calls are safe for concurrent use.
type Service struct {
	butlerv1.UnimplementedApprovalServiceServer

	bus      *bus.Bus
	signer   *approval.Signer
	known    approval.Keys // that links of the audit chain are signed with
	shells   map[string]butlerv1.ShellServiceClient
	people   *people
	book     *book
	chain    *chain
	log      *slog.Logger
	now      func() time.Time
	settings atomic.Pointer[Settings]
	policy   atomic.Pointer[Policy]
	decided  *prometheus.CounterVec
}

// New returns a Service. It touches nothing: Run does.
func New(d Deps) (*Service, error) {
	if d.Bus == nil || d.People == nil || d.Signer == nil {
		return nil, errors.New("approval: the bus, the people and the signing key are needed")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	s := &Service{
		bus: d.Bus, signer: d.Signer, known: approval.Keys{d.Signer.KeyID(): d.Signer.Public()}, shells: d.Shells, log: d.Log, now: d.Clock,
		people: newPeople(d.People, d.Clock), book: newBook(),
		decided: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "butler_approvals_total", Help: "Requests for approval by how they stand: pending when asked, then the outcome.",
		}, []string{"status"}),
	}
	for _, key := range d.Earlier {
		s.known[approval.KeyID(key)] = key
	}
	s.chain = newChain(s)
	if d.Metrics != nil {
		if err := d.Metrics.Register(s.decided); err != nil {
			return nil, fmt.Errorf("approval: %w", err)
		}
	}
	s.SetSettings(d.Settings)
	if d.Policy == nil {
		d.Policy = BuiltIn()
	}
	s.SetPolicy(d.Policy)
	return s, nil
}

// SetPolicy puts another policy in force for requests from now on.
func (s *Service) SetPolicy(p *Policy) { s.policy.Store(p) }

// SetSettings changes the clocks of requests from now on.
func (s *Service) SetSettings(v Settings) {
	v = v.withDefaults()
	s.settings.Store(&v)
}

// Register adds the service to a gRPC server.
func (s *Service) Register(r grpc.ServiceRegistrar) { butlerv1.RegisterApprovalServiceServer(r, s) }

// Ready says what is missing for the service to answer, or nil.
func (s *Service) Ready(ctx context.Context) error {
	if !s.book.complete() {
		return fault.New(fault.Unavailable, "the pending approvals were not read from the log yet")
	}
	if err := s.people.ready(ctx); err != nil {
		return err
	}
	return s.bus.Check(ctx)
}

// Run declares the streams, reads what is pending and does what follows from each change, until ctx ends. It returns nil
// then.
func (s *Service) Run(ctx context.Context) error {
	if err := s.bus.Ensure(ctx, Streams...); err != nil {
		return endOf(ctx, err)
	}
	stop, err := s.people.listen(s.bus)
	if err != nil {
		return endOf(ctx, err)
	}
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.follow(ctx) })
	g.Go(func() error { return s.actOnChanges(ctx) })
	g.Go(func() error { return s.expire(ctx) })
	g.Go(func() error { s.people.refresh(ctx); return ctx.Err() })
	return endOf(ctx, g.Wait())
}

func endOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was to end
	}
	return err
}

// ListGrantKeys gives the public key.
func (s *Service) ListGrantKeys(context.Context, *butlerv1.ListGrantKeysRequest) (*butlerv1.ListGrantKeysResponse, error) {
	return &butlerv1.ListGrantKeysResponse{Keys: []*butlerv1.GrantKey{{Id: s.signer.KeyID(), Public: s.signer.Public()}}}, nil
}
