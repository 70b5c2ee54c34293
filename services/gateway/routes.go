package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// who may use a route.
type audienceOf uint8

const (
	anybody   audienceOf = iota // the handler looks itself, or nobody has to be known
	signedIn                    // whoever has a valid token
	adminOnly                   // administrators
)

// route is one line of the API.
type route struct {
	method, path string
	who          audienceOf
	serve        func(w http.ResponseWriter, r *http.Request, who *principal) error
}

// api lists the HTTP API.
func (s *Service) api() []route {
	return []route{
		{"GET", "/api/ping", anybody, ping},
		{"POST", "/api/auth/login", anybody, s.login},
		{"POST", "/api/auth/logout", anybody, s.logout},
		{"GET", "/api/auth/me", signedIn, s.me},
		{"POST", "/api/auth/password", signedIn, s.changePassword},
		{"GET", "/api/tokens", signedIn, s.listTokens},
		{"POST", "/api/tokens", signedIn, s.createToken},
		{"DELETE", "/api/tokens/{id}", signedIn, s.deleteToken},
		{"GET", "/api/users", adminOnly, s.listPeople},
		{"POST", "/api/users", adminOnly, s.createPerson},
		{"PATCH", "/api/users/{id}", adminOnly, s.updatePerson},
		{"GET", "/api/users/butler", signedIn, s.butler},
		{"GET", "/api/users/agents", signedIn, s.listAgents},
		{"GET", "/api/users/agents/status", signedIn, s.agentStatus},
		{"GET", "/api/chat/threads", signedIn, s.listThreads},
		{"POST", "/api/chat/threads", signedIn, s.createThread},
		{"GET", "/api/chat/threads/{id}", signedIn, s.getThread},
		{"PATCH", "/api/chat/threads/{id}", signedIn, s.updateThread},
		{"DELETE", "/api/chat/threads/{id}", signedIn, s.deleteThread},
		{"GET", "/api/chat/threads/{id}/messages", signedIn, s.threadMessages},
		{"GET", "/api/chat/history/{peer_id}", signedIn, s.history},
		{"POST", "/api/chat/messages", signedIn, s.postMessage},
		{"POST", "/api/chat/stop", signedIn, s.stopChat},
		{"POST", "/api/chat/auth/response", signedIn, s.authResponse},
		{"GET", "/api/approvals", signedIn, s.listApprovals},
		{"GET", "/api/approvals/{id}", signedIn, s.getApproval},
		{"POST", "/api/approvals/{id}/decision", signedIn, s.decideAction},
		{"GET", "/api/shells", signedIn, s.listShells},
		{"DELETE", "/api/shells/{host}/{person}", signedIn, s.closeShell},
		{"GET", "/api/shell/commands", signedIn, s.listCommands},
		{"GET", "/api/shell/commands/{approval_id}/output", signedIn, s.commandOutput},
		{"GET", "/api/audit", adminOnly, s.listAudit},
		{"GET", "/api/audit/verify", adminOnly, s.verifyAudit},
		{"POST", "/api/ws/ticket", signedIn, s.ticket},
		{"GET", "/api/ws", anybody, func(w http.ResponseWriter, r *http.Request, _ *principal) error { return s.serveWS(w, r) }},
		{"GET", "/api/events", anybody, func(w http.ResponseWriter, r *http.Request, _ *principal) error { return s.serveEvents(w, r) }},
	}
}

func (s *Service) routes(page, ops http.Handler) http.Handler {
	mux := http.NewServeMux()
	for _, rt := range s.api() {
		mux.Handle(rt.method+" "+rt.path, s.guarded(rt, s.writeError))
	}
	mux.Handle("POST /v1/chat/completions", s.guarded(route{who: signedIn, serve: s.completions}, s.writeOpenAIError))
	mux.Handle("GET /v1/models", s.guarded(route{who: signedIn, serve: s.models}, s.writeOpenAIError))
	mux.Handle("GET /v1/models/{model}", s.guarded(route{who: signedIn, serve: s.model}, s.writeOpenAIError))
	nothing := func(write func(http.ResponseWriter, *http.Request, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			write(w, r, fault.New(fault.NotFound, "there is no %s %s", r.Method, r.URL.Path))
		}
	}
	mux.Handle("/api/", nothing(s.writeError))
	mux.Handle("/v1/", nothing(s.writeOpenAIError))
	if ops != nil {
		ops = mustBeRead(ops)
		mux.Handle("GET /health", ops)
		mux.Handle("GET /ready", ops)
		mux.Handle("GET /metrics", ops)
	}
	if page != nil {
		mux.Handle("/", mustBeRead(page))
	}
	return s.outer(mux)
}

// guarded lets in whom the route is for and answers errors.
func (s *Service) guarded(rt route, writeError func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var who *principal
		if rt.who != anybody {
			var err error
			if who, err = s.identify(r); err != nil {
				writeError(w, r, err)
				return
			}
			if rt.who == adminOnly && !who.admin() {
				writeError(w, r, errNotAdmin)
				return
			}
		}
		if err := rt.serve(w, r, who); err != nil {
			writeError(w, r, err)
		}
	})
}

// outer is around everything: headers, other sites, a log line at debug level without query or token.
func (s *Service) outer(next http.Handler) http.Handler {
	origins := make([]string, 0, len(s.settings.AllowedOrigins))
	for _, o := range s.settings.AllowedOrigins {
		origins = append(origins, trimPath(o))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if origin := r.Header.Get("Origin"); origin != "" && len(origins) > 0 {
			h.Add("Vary", "Origin")
			if slices.Contains(origins, origin) {
				h.Set("Access-Control-Allow-Origin", origin)
				h.Set("Access-Control-Expose-Headers", "X-Total-Count, X-Next-Before, X-Butler-Stale, Retry-After")
				h.Set("Cross-Origin-Resource-Policy", "cross-origin")
				if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
					h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
					h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Butler-Session, Idempotency-Key, Last-Event-ID")
					h.Set("Access-Control-Max-Age", "600")
					w.WriteHeader(http.StatusNoContent)
					return
				}
			}
		}
		began := time.Now()
		next.ServeHTTP(w, r)
		s.log.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "took", time.Since(began))
	})
}

func ping(w http.ResponseWriter, _ *http.Request, _ *principal) error {
	writeJSON(w, http.StatusOK, map[string]string{"message": "pong"})
	return nil
}

// readJSON reads a body of at most limit bytes. Fields that are not known are passed over: old clients send some.
func readJSON(w http.ResponseWriter, r *http.Request, into any, limit int64) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return fault.New(fault.TooLarge, "the body has at most %d KiB", tooLarge.Limit>>10)
		}
		return fault.Wrap(err, fault.Invalid, "the body could not be read")
	}
	if err := json.Unmarshal(body, into); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			return fault.New(fault.Invalid, "%s must be a %s", wrong.Field, wrong.Type)
		}
		return fault.Wrap(err, fault.Invalid, "the body is not a JSON object as this request needs it")
	}
	return nil
}
