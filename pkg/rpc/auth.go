package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// tokenCredentials puts the internal token on each call. It may travel without TLS: that is its use on one machine.
type tokenCredentials string

func (t tokenCredentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (tokenCredentials) RequireTransportSecurity() bool { return false }

// guard refuses calls without the internal token.
type guard struct {
	need   bool
	digest [sha256.Size]byte
	log    *slog.Logger
	loud   *rate.Limiter // a flood of refusals must not become a flood of log lines
}

func newGuard(token string, log *slog.Logger) *guard {
	return &guard{need: token != "", digest: sha256.Sum256([]byte(token)), log: log,
		loud: rate.NewLimiter(rate.Every(time.Second), 5)}
}

// check compares digests in constant time, so that neither content nor length of the token can be found by timing. The
// health service is open to the orchestrator's probes: it tells only whether the process serves.
func (g *guard) check(ctx context.Context, method string) error {
	if !g.need || strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		return nil
	}
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 1 {
		scheme, token, _ := strings.Cut(values[0], " ")
		digest := sha256.Sum256([]byte(token))
		if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(digest[:], g.digest[:]) == 1 {
			return nil
		}
	}
	if g.loud.Allow() {
		from := "unknown"
		if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
			from = p.Addr.String()
		}
		g.log.WarnContext(ctx, "refused a call without the right INTERNAL_SERVICE_TOKEN", "method", method, "from", from)
	}
	return status.Error(codes.Unauthenticated, "the internal service token is missing or wrong")
}
