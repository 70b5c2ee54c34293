package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// codec turns the text of a setting into its value and back. Its errors complete the sentence "BUTLER_X …" and never
// repeat text that may hold a secret.
type codec[T any] struct {
	parse  func(text string) (T, error)
	format func(T) string
}

// maxText bounds a single value; a longer one is a mistake (a file's content instead of its path).
const maxText = 64 << 10

func plain(min, max int) codec[string] {
	return codec[string]{
		parse: func(text string) (string, error) {
			if n := utf8.RuneCountInString(text); n < min || n > max {
				return "", fmt.Errorf("must have %d to %d characters, not %d", min, max, n)
			}
			if strings.ContainsFunc(text, unicode.IsControl) {
				return "", errors.New("must not hold control characters or line breaks")
			}
			return text, nil
		},
		format: func(v string) string { return v },
	}
}

// secret is a text of at least min characters, when there is one. Its errors tell lengths only.
func secret(min int) codec[Secret] {
	return codec[Secret]{
		parse: func(text string) (Secret, error) {
			if n := utf8.RuneCountInString(text); text != "" && n < min {
				return "", fmt.Errorf("must have at least %d characters, not %d", min, n)
			}
			if strings.ContainsFunc(text, unicode.IsControl) {
				return "", errors.New("must not hold control characters or line breaks")
			}
			return Secret(text), nil
		},
		format: Secret.String,
	}
}

func oneOf[T ~string](values ...T) codec[T] {
	return codec[T]{
		parse: func(text string) (T, error) {
			if v := T(strings.ToLower(text)); slices.Contains(values, v) {
				return v, nil
			}
			var names []string
			for _, v := range values {
				names = append(names, string(v))
			}
			return "", fmt.Errorf("must be one of %s, not %s", strings.Join(names, ", "), quoted(text))
		},
		format: func(v T) string { return string(v) },
	}
}

func number[T int | uint32](min, max T) codec[T] {
	return codec[T]{
		parse: func(text string) (T, error) {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("must be a whole number, not %s", quoted(text))
			}
			if n < int64(min) || n > int64(max) {
				return 0, fmt.Errorf("must be %d to %d, not %d", min, max, n)
			}
			return T(n), nil
		},
		format: func(v T) string { return strconv.FormatInt(int64(v), 10) },
	}
}

func replicas() codec[int] {
	c := number(1, 5)
	return codec[int]{
		parse: func(text string) (int, error) {
			n, err := c.parse(text)
			if err == nil && n%2 == 0 {
				err = fmt.Errorf("must be 1, 3 or 5, not %d", n)
			}
			return n, err
		},
		format: c.format,
	}
}

func duration(min, max time.Duration) codec[time.Duration] {
	return codec[time.Duration]{
		parse: func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			if err != nil {
				return 0, fmt.Errorf("must be a duration such as 90s, 10m or 24h, not %s", quoted(text))
			}
			if d < min || d > max {
				return 0, fmt.Errorf("must be %s to %s, not %s", short(min), short(max), short(d))
			}
			return d, nil
		},
		format: short,
	}
}

// seconds is a duration that may be written as a plain number of seconds, as in the published configuration.
func seconds(min, max time.Duration) codec[time.Duration] {
	c := duration(min, max)
	return codec[time.Duration]{
		parse: func(text string) (time.Duration, error) {
			if n, err := strconv.ParseUint(text, 10, 32); err == nil {
				text = fmt.Sprintf("%ds", n)
			}
			return c.parse(text)
		},
		format: c.format,
	}
}

func boolean() codec[bool] {
	return codec[bool]{
		parse: func(text string) (bool, error) {
			switch strings.ToLower(text) {
			case "true", "yes", "on", "1":
				return true, nil
			case "false", "no", "off", "0":
				return false, nil
			}
			return false, fmt.Errorf("must be true or false, not %s", quoted(text))
		},
		format: strconv.FormatBool,
	}
}

var hostTokenPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

func hostToken(text string) (string, error) {
	if !hostTokenPattern.MatchString(text) {
		return "", fmt.Errorf("must have 1 to 63 letters, digits, - and _, not %s", quoted(text))
	}
	return text, nil
}

func hostName() codec[string] {
	return codec[string]{
		parse: func(text string) (string, error) {
			if text == "" {
				return "", nil
			}
			return hostToken(text)
		},
		format: func(v string) string { return v },
	}
}

// pair is left=right, each side checked; form names the sides in errors.
func pair(form string, left, right func(string) (string, error)) codec[string] {
	return codec[string]{
		parse: func(text string) (string, error) {
			l, r, found := strings.Cut(text, "=")
			if !found {
				return "", fmt.Errorf("must list %s, not %s", form, quoted(text))
			}
			l, err := left(l)
			if err != nil {
				return "", err
			}
			r, err = right(r)
			if err != nil {
				return "", err
			}
			return l + "=" + r, nil
		},
		format: func(v string) string { return v },
	}
}

// short writes a duration without its zero parts: 10m, not 10m0s.
func short(d time.Duration) string {
	s := d.String()
	if d >= time.Minute || d <= -time.Minute {
		if d%time.Minute == 0 {
			s = strings.TrimSuffix(s, "0s")
		}
		if d%time.Hour == 0 {
			s = strings.TrimSuffix(s, "0m")
		}
	}
	return s
}

// syncInterval is "always" (0) or a duration.
func syncInterval() codec[time.Duration] {
	c := duration(time.Millisecond, time.Hour)
	return codec[time.Duration]{
		parse: func(text string) (time.Duration, error) {
			if strings.EqualFold(text, "always") {
				return 0, nil
			}
			if _, err := time.ParseDuration(text); err != nil {
				return 0, fmt.Errorf("must be always, or a duration such as 2m, not %s", quoted(text))
			}
			return c.parse(text)
		},
		format: func(d time.Duration) string {
			if d == 0 {
				return "always"
			}
			return c.format(d)
		},
	}
}

func level() codec[slog.Level] {
	names := []string{"debug", "info", "warn", "error"}
	c := oneOf(names...)
	return codec[slog.Level]{
		parse: func(text string) (slog.Level, error) {
			if strings.EqualFold(text, "warning") {
				text = "warn"
			}
			name, err := c.parse(text)
			if err != nil {
				return 0, err
			}
			return slog.Level(4*slices.Index(names, name) - 4), nil
		},
		format: func(l slog.Level) string { return strings.ToLower(l.String()) },
	}
}

// path is a file or folder; "~/" is the home folder.
func path(home string) codec[string] {
	c := plain(0, 4096)
	return codec[string]{
		parse: func(text string) (string, error) {
			if rest, ok := strings.CutPrefix(text, "~/"); ok {
				if home == "" {
					return "", errors.New("begins with ~/ but HOME is not set: write the whole path")
				}
				text = filepath.Join(home, rest)
			}
			return c.parse(text)
		},
		format: c.format,
	}
}

// addr is host:port to listen on; port 0 takes a free one, an empty host takes every interface.
func addr() codec[string] {
	return codec[string]{
		parse: func(text string) (string, error) {
			if _, err := splitAddr(text); err != nil {
				return "", err
			}
			return text, nil
		},
		format: func(v string) string { return v },
	}
}

func splitAddr(text string) (port int, err error) {
	host, p, err := net.SplitHostPort(text)
	if err != nil {
		return 0, fmt.Errorf("must be host:port such as 127.0.0.1:8080, not %s", quoted(text))
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return 0, fmt.Errorf("must end in a port from 0 to 65535, not %s", quoted(p))
	}
	if host != "" && !validHost(host) {
		return 0, fmt.Errorf("must name a host or an IP address before the port, not %s", quoted(host))
	}
	return port, nil
}

func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if len(host) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(host, "."), ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, r := range label {
			if r != '-' && r != '_' && (r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)) {
				return false
			}
		}
	}
	return true
}

// target is what gRPC dials: host:port, or a target of the dns, passthrough or unix scheme; empty for the address that
// is listened on.
func target() codec[string] {
	return codec[string]{
		parse: func(text string) (string, error) {
			rest := text
			switch scheme, after, _ := strings.Cut(text, ":"); scheme {
			case "unix":
				if strings.TrimLeft(after, "/") == "" {
					return "", errors.New("must name a socket after unix:")
				}
				return text, nil
			case "dns", "passthrough":
				rest = after
				if s, ok := strings.CutPrefix(after, "//"); ok {
					_, rest, _ = strings.Cut(s, "/")
				}
			}
			if rest == "" && text == "" {
				return "", nil
			}
			if port, err := splitAddr(rest); err != nil || port == 0 || strings.HasPrefix(rest, ":") {
				return "", fmt.Errorf("must be host:port or dns:///host:port, not %s", quoted(text))
			}
			return text, nil
		},
		format: func(v string) string { return v },
	}
}

// link is an absolute URL of one of the schemes. Its errors never repeat the URL, since it may hold a password.
func link(userinfo bool, schemes ...string) codec[string] {
	return codec[string]{
		parse: func(text string) (string, error) {
			if text == "" {
				return "", nil
			}
			u, err := url.Parse(text)
			// PostgreSQL's own form for a Unix socket has the folder in the query.
			socket := err == nil && strings.HasPrefix(u.Scheme, "postgres") && strings.HasPrefix(u.Query().Get("host"), "/")
			if err != nil || u.Host == "" && !socket || !slices.Contains(schemes, u.Scheme) {
				return "", fmt.Errorf("must be a URL that begins with %s:// and names a host",
					strings.Join(schemes, ":// or "))
			}
			if !userinfo && u.User != nil {
				return "", errors.New("must not hold a user name or password")
			}
			if p := u.Port(); p != "" {
				if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
					return "", errors.New("must have a port from 1 to 65535")
				}
			}
			return text, nil
		},
		format: maskURL,
	}
}

// maskURL hides what a URL may hold beside the address: user, password and query values.
func maskURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil {
		return mask
	}
	if u.User != nil {
		u.User = url.User("REDACTED")
	}
	if u.RawQuery != "" {
		q := u.Query()
		for k := range q {
			if k != "sslmode" {
				q.Set(k, "REDACTED")
			}
		}
		u.RawQuery = q.Encode()
	}
	u.Fragment = ""
	return u.String()
}

// links is a list of URLs in one text, with commas between them (NATS seeds).
func links(schemes ...string) codec[string] {
	one := link(true, schemes...)
	return codec[string]{
		parse: func(text string) (string, error) {
			urls := split(text)
			for _, u := range urls {
				if _, err := one.parse(u); err != nil {
					return "", err
				}
			}
			return strings.Join(urls, ","), nil
		},
		format: func(v string) string {
			urls := split(v)
			for i := range urls {
				urls[i] = one.format(urls[i])
			}
			return strings.Join(urls, ",")
		},
	}
}

// origin is scheme://host[:port] and nothing else; a slash at the end is dropped.
func origin() codec[string] {
	c := link(false, "http", "https")
	return codec[string]{
		parse: func(text string) (string, error) {
			text = strings.TrimRight(text, "/")
			if _, err := c.parse(text); err != nil {
				return "", err
			}
			if u, err := url.Parse(text); err != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
				return "", errors.New("must be scheme://host or scheme://host:port, without a path")
			}
			return text, nil
		},
		format: c.format,
	}
}

func origins() codec[[]string] {
	one := origin()
	return list(codec[string]{
		parse: func(text string) (string, error) {
			if text == "*" {
				return "", errors.New("must name each origin: with * any web page could act for whoever is signed in")
			}
			return one.parse(text)
		},
		format: one.format,
	})
}

func prefixes() codec[[]netip.Prefix] {
	return list(codec[netip.Prefix]{
		parse: func(text string) (netip.Prefix, error) {
			if a, err := netip.ParseAddr(text); err == nil {
				return netip.PrefixFrom(a, a.BitLen()), nil
			}
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return p, fmt.Errorf("must list networks such as 10.0.0.0/8, not %s", quoted(text))
			}
			return p.Masked(), nil
		},
		format: netip.Prefix.String,
	})
}

func list[T any](one codec[T]) codec[[]T] {
	return codec[[]T]{
		parse: func(text string) ([]T, error) {
			parts := split(text)
			if len(parts) > 100 {
				return nil, fmt.Errorf("must list at most 100 values, not %d", len(parts))
			}
			var out []T
			for _, part := range parts {
				v, err := one.parse(part)
				if err != nil {
					return nil, err
				}
				out = append(out, v)
			}
			return out, nil
		},
		format: func(values []T) string {
			parts := make([]string, len(values))
			for i, v := range values {
				parts[i] = one.format(v)
			}
			return strings.Join(parts, ",")
		},
	}
}

// split cuts a list at commas and drops spaces and empty parts.
func split(text string) []string {
	var parts []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}
