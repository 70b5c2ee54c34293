package gateway

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/gateway/store"
)

// signInLimits bound failed sign-ins. Nobody can lock out another: what is refused is refused to an address.
//
//   - of a name from an address: ten, then one in six seconds;
//   - from an address: thirty, then one in two seconds;
//   - of a name from anywhere: a hundred, then each waits before it is tried, longer and longer, up to five seconds.
//
// An attempt counts until it succeeds.
type signInLimits struct {
	pairs     *limiter[signIn]
	addresses *limiter[netip.Prefix]
	names     *limiter[string]
	own       *limiter[int64] // of people who are signed in and say their password again
	pause     func(ctx context.Context, d time.Duration) error
}

// signIn is who somebody wants to be, and where they are.
type signIn struct {
	name string
	from netip.Prefix
}

// maxSignInPause bounds how long a sign-in waits because the name is under attack.
const maxSignInPause = 5 * time.Second

func newSignInLimits(now func() time.Time) *signInLimits {
	return &signInLimits{
		pairs:     newLimiter[signIn](now, 1.0/6, 10),
		addresses: newLimiter[netip.Prefix](now, 0.5, 30),
		names:     newLimiter[string](now, 1, 100),
		own:       newLimiter[int64](now, 1.0/6, 10),
		pause: func(ctx context.Context, d time.Duration) error {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
}

func (l *signInLimits) forget() {
	l.pairs.forget()
	l.addresses.forget()
	l.names.forget()
	l.own.forget()
}

const tooManySignIns = "too many failed sign-ins; wait a little and try again"

// begin counts an attempt, and waits when there were many of the name; succeeded takes it back.
func (l *signInLimits) begin(ctx context.Context, name string, from netip.Addr) (succeeded func(), err error) {
	name = strings.ToLower(strings.TrimSpace(name))
	if len(name) > 256 {
		name = name[:256]
	}
	bits := 32
	if from.Is6() {
		bits = 64 // who has one address of a /64 has them all
	}
	network, _ := from.Prefix(bits)
	pair := signIn{name, network}
	if wait := l.addresses.take(network); wait > 0 {
		return nil, rateLimited(wait, tooManySignIns)
	}
	if wait := l.pairs.take(pair); wait > 0 {
		return nil, rateLimited(wait, tooManySignIns)
	}
	if wait := l.names.overdraw(name, maxSignInPause); wait > 0 {
		if err := l.pause(ctx, wait); err != nil {
			return nil, err
		}
	}
	return func() {
		l.addresses.give(network)
		l.pairs.give(pair)
		l.names.give(name)
	}, nil
}

// beginOwn is begin for somebody who is signed in already: only their own attempts count.
func (l *signInLimits) beginOwn(person int64) (succeeded func(), err error) {
	if wait := l.own.take(person); wait > 0 {
		return nil, rateLimited(wait, tooManySignIns)
	}
	return func() { l.own.give(person) }, nil
}

// verify checks a name and password, within the limits that begin applied.
func (s *Service) verify(ctx context.Context, name, password string, succeeded func()) (store.Person, error) {
	person, err := s.store.VerifyPassword(ctx, name, password)
	if err == nil || fault.CodeOf(err) != fault.Unauthenticated {
		succeeded()
	}
	return person, err
}

// login serves POST /api/auth/login.
func (s *Service) login(w http.ResponseWriter, r *http.Request, _ *principal) error {
	if err := s.checkOrigin(r, r.Method); err != nil {
		return err
	}
	var in struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := readJSON(w, r, &in, 16<<10); err != nil {
		return err
	}
	if in.Username == "" || in.Password == "" {
		return fault.New(fault.Invalid, "username and password are needed")
	}
	succeeded, err := s.signIns.begin(r.Context(), in.Username, s.client(r))
	if err != nil {
		return err
	}
	person, err := s.verify(r.Context(), in.Username, in.Password, succeeded)
	if err != nil {
		return err
	}
	return s.signedIn(w, r, person, http.StatusOK)
}

// signedIn makes a session for a person whose password was right.
func (s *Service) signedIn(w http.ResponseWriter, r *http.Request, person store.Person, status int) error {
	token, secret, err := s.store.CreateToken(r.Context(), person.ID, store.SessionToken, deviceName(r), s.settings.SignInLifetime)
	if err != nil {
		return err
	}
	s.setCookie(w, r, secret, s.settings.SignInLifetime)
	out := map[string]any{"token": secret, "user": userOf(person)}
	if !token.ExpiresAt.IsZero() {
		out["expires_at"] = token.ExpiresAt
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, status, out)
	return nil
}

func (s *Service) setCookie(w http.ResponseWriter, r *http.Request, value string, lifetime time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: int(lifetime / time.Second),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.secure(r),
	})
}

// deviceName says in the list of sessions where one was signed in.
func deviceName(r *http.Request) string {
	name := strings.ToValidUTF8(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return -1
		}
		return c
	}, r.UserAgent()), "")
	if runes := []rune(name); len(runes) > 60 {
		name = string(runes[:60])
	}
	return name
}

// logout serves POST /api/auth/logout: it ends the session, and nothing when there is none.
func (s *Service) logout(w http.ResponseWriter, r *http.Request, _ *principal) error {
	who, err := s.identify(r)
	if fault.CodeOf(err) == fault.Forbidden || fault.CodeOf(err) == fault.Unavailable {
		return err
	}
	if err == nil && who.token.Kind == store.SessionToken {
		if err := s.store.RevokeToken(r.Context(), who.id(), who.token.ID); err != nil && fault.CodeOf(err) != fault.NotFound {
			return err
		}
		s.access.announce(r.Context(), who.id(), who.token.ID)
	}
	s.setCookie(w, r, "", -time.Second)
	writeJSON(w, http.StatusOK, map[string]bool{"ok": true})
	return nil
}

// changePassword serves POST /api/auth/password. It ends all of the person's tokens and signs them in again.
func (s *Service) changePassword(w http.ResponseWriter, r *http.Request, who *principal) error {
	var in struct {
		Current string `json:"current_password"`
		Old     string `json:"old_password"` // another name for it
		New     string `json:"new_password"`
	}
	if err := readJSON(w, r, &in, 16<<10); err != nil {
		return err
	}
	if in.Current == "" {
		in.Current = in.Old
	}
	if in.Current == "" || in.New == "" {
		return fault.New(fault.Invalid, "current_password and new_password are needed")
	}
	succeeded, err := s.signIns.beginOwn(who.id())
	if err != nil {
		return err
	}
	if _, err := s.verify(r.Context(), who.person.Name, in.Current, succeeded); err != nil {
		if fault.CodeOf(err) == fault.Unauthenticated {
			return fault.New(fault.Forbidden, "the current password is not right")
		}
		return err
	}
	person, err := s.store.UpdatePerson(r.Context(), who.id(), store.Change{Password: &in.New})
	if err != nil {
		return err
	}
	s.access.announce(r.Context(), who.id(), 0)
	return s.signedIn(w, r, person, http.StatusOK)
}

// me serves GET /api/auth/me.
func (s *Service) me(w http.ResponseWriter, _ *http.Request, who *principal) error {
	writeJSON(w, http.StatusOK, userOf(who.person))
	return nil
}

// ticket serves POST /api/ws/ticket.
func (s *Service) ticket(w http.ResponseWriter, r *http.Request, who *principal) error {
	_, secret, err := s.store.CreateTicket(r.Context(), who.token)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, map[string]any{"ticket": secret, "expires_in": int(store.TicketTTL / time.Second)})
	return nil
}

// listTokens serves GET /api/tokens: the person's own, without secrets.
func (s *Service) listTokens(w http.ResponseWriter, r *http.Request, who *principal) error {
	tokens, err := s.store.Tokens(r.Context(), who.id())
	if err != nil {
		return err
	}
	now := s.now()
	out := make([]tokenJSON, 0, len(tokens))
	for _, t := range tokens {
		if t.Valid(now) {
			j := tokenOf(t)
			j.Current = t.ID == who.token.ID
			out = append(out, j)
		}
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// createToken serves POST /api/tokens: a personal token, whose secret is shown this once.
func (s *Service) createToken(w http.ResponseWriter, r *http.Request, who *principal) error {
	var in struct {
		Name string `json:"name"`
		Days int    `json:"expires_in_days"` // 0: never
	}
	if err := readJSON(w, r, &in, 16<<10); err != nil {
		return err
	}
	if in.Days < 0 || in.Days > 36500 {
		return fault.New(fault.Invalid, "expires_in_days must be 1 to 36500, or 0 for a token that does not expire")
	}
	token, secret, err := s.store.CreateToken(r.Context(), who.id(), store.PersonalToken, in.Name, time.Duration(in.Days)*24*time.Hour)
	if err != nil {
		return err
	}
	out := tokenOf(token)
	out.Token = secret
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusCreated, out)
	return nil
}

// deleteToken serves DELETE /api/tokens/{id}.
func (s *Service) deleteToken(w http.ResponseWriter, r *http.Request, who *principal) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	if err := s.store.RevokeToken(r.Context(), who.id(), id); err != nil {
		return err
	}
	s.access.announce(r.Context(), who.id(), id)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// tokenJSON is a token as the API shows it.
type tokenJSON struct {
	ID         int64      `json:"id"`
	Kind       string     `json:"kind"`
	Name       string     `json:"name"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	Current    bool       `json:"current,omitempty"`
	Token      string     `json:"token,omitempty"` // the secret, when it was just made
}

func tokenOf(t store.Token) tokenJSON {
	return tokenJSON{
		ID: t.ID, Kind: string(t.Kind), Name: t.Name, CreatedAt: t.CreatedAt,
		ExpiresAt: optional(t.ExpiresAt), LastUsedAt: optional(t.LastUsedAt),
	}
}

// optional gives nil for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
