package gateway

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/butlerhub/butler/pkg/fault"
)

// cookieName is the cookie that a sign-in sets.
const cookieName = "butler_session"

// maxSecret bounds what is taken for a token.
const maxSecret = 512

// identify gives who makes a request: by the token in the Authorization header, else by the cookie. A cookie does not
// count in a request that another site's page made.
func (s *Service) identify(r *http.Request) (*principal, error) {
	if secret, ok := bearer(r); ok {
		return s.access.authenticate(r.Context(), secret)
	}
	c, err := r.Cookie(cookieName)
	if err != nil || c.Value == "" || len(c.Value) > maxSecret {
		return nil, errNobody
	}
	if err := s.checkOrigin(r, r.Method); err != nil {
		return nil, err
	}
	return s.access.authenticate(r.Context(), c.Value)
}

// identifyStream is identify for the WebSocket and the event stream, which browsers cannot give a header: they may have
// a one-time ticket or, for old clients, a token in the query.
func (s *Service) identifyStream(r *http.Request) (*principal, error) {
	q := r.URL.Query()
	if ticket := q.Get("ticket"); ticket != "" && len(ticket) <= maxSecret {
		person, token, err := s.store.TakeTicket(r.Context(), ticket)
		if err != nil {
			return nil, err
		}
		return &principal{person, token, 0}, nil // a ticket is read without the cache: entering checks it again
	}
	if _, ok := bearer(r); !ok {
		if secret := q.Get("token"); secret != "" {
			if len(secret) > maxSecret {
				return nil, errNobody
			}
			return s.access.authenticate(r.Context(), secret)
		}
		// A WebSocket is opened by GET and can do what POST does.
		if err := s.checkOrigin(r, http.MethodPost); err != nil {
			return nil, err
		}
	}
	return s.identify(r)
}

func bearer(r *http.Request) (string, bool) {
	scheme, secret, found := strings.Cut(r.Header.Get("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	return secret, found && strings.EqualFold(scheme, "Bearer") && secret != "" && len(secret) <= maxSecret
}

// checkOrigin refuses what a page of another site sends with the person's cookie.
func (s *Service) checkOrigin(r *http.Request, method string) error {
	err := s.origins.Check(&http.Request{Method: method, Header: r.Header, Host: r.Host, URL: r.URL})
	if err != nil {
		return fault.Wrap(err, fault.Forbidden, "this request comes from another web site; it is not allowed")
	}
	return nil
}

// trimPath leaves scheme and host of a URL: its origin.
func trimPath(origin string) string {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return origin
	}
	return u.Scheme + "://" + u.Host
}

// client gives the address of who made a request. X-Forwarded-For counts as far as it was written by trusted proxies.
func (s *Service) client(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	addr, _ := netip.ParseAddr(host) // the zero address when there is none: then all share one limit
	addr = addr.Unmap()
	if !s.trusted(addr) {
		return addr
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && i > len(hops)-16; i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			return addr
		}
		if addr = hop.Unmap(); !s.trusted(addr) {
			return addr
		}
	}
	return addr
}

func (s *Service) trusted(addr netip.Addr) bool {
	for _, p := range s.settings.TrustedProxies {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// secure says whether the person's browser speaks https.
func (s *Service) secure(r *http.Request) bool {
	switch s.settings.CookieSecure {
	case "true":
		return true
	case "false":
		return false
	}
	if r.TLS != nil || strings.HasPrefix(s.settings.PublicURL, "https://") {
		return true
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	peer, err := netip.ParseAddr(host)
	return err == nil && s.trusted(peer.Unmap()) && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// language gives en or zh: what was asked for, else what the browser prefers, else the setting.
func (s *Service) language(r *http.Request, asked string) string {
	for _, want := range []string{asked, r.URL.Query().Get("lang")} {
		if l := knownLanguage(want); l != "" {
			return l
		}
	}
	return cmp.Or(acceptedLanguage(r.Header.Get("Accept-Language")), s.settings.Language)
}
