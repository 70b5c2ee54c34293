package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

var (
	errTooSlow  = errors.New("the client does not read")
	errNobody   = fault.New(fault.Unauthenticated, "sign in first")
	errNotAdmin = fault.New(fault.Forbidden, "only an administrator may do this")
)

// writeError answers with {"error": sentence, "code": code}; the sentence is in the caller's language.
func (s *Service) writeError(w http.ResponseWriter, r *http.Request, err error) {
	status := fault.HTTPStatus(err)
	if status >= 500 && status != http.StatusServiceUnavailable {
		s.log.ErrorContext(r.Context(), "a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	} else {
		s.log.DebugContext(r.Context(), "a request was refused", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	retryHeader(w, err)
	writeJSON(w, status, map[string]string{"error": s.sentence(r, err), "code": string(fault.CodeOf(err))})
}

func retryHeader(w http.ResponseWriter, err error) {
	retry := fault.RetryAfter(err)
	if retry == 0 && fault.CodeOf(err) == fault.Unavailable {
		retry = time.Second
	}
	if retry > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((retry+time.Second-1)/time.Second), 10))
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a defect: only plain values come here
		status, body = http.StatusInternalServerError, []byte(`{"error":"internal error","code":"internal"}`)
	}
	mustRead(w)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone: nobody to tell
}

// readWithin is how long a client may take to read a whole answer that is no stream.
const readWithin = time.Minute

// mustRead ends the connection of a client that does not read what is written from now on. Everything that writes sets
// such a deadline anew: it stays with the connection.
func mustRead(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readWithin)) // not every writer in tests has one
}

// mustBeRead is mustRead for a handler of another's.
func mustBeRead(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mustRead(w)
		next.ServeHTTP(w, r)
	})
}
