package telemetry

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/redact"
)

// Masked stands where a secret was that its name gave away; redact.Marker says what stands for others.
var Masked = redact.Marker("")

// maxLogged bounds one text in a log, in bytes.
const maxLogged = 8 << 10

// sensitive are parts of attribute keys whose text is never logged. Numbers under them are (prompt_tokens=12).
var sensitive = []string{"token", "password", "passwd", "passphrase", "secret", "authorization", "cookie", "api_key",
	"apikey", "credential", "private_key", "admin_pass"}

func isSensitive(key string) bool {
	key = strings.ReplaceAll(strings.ToLower(key), "-", "_")
	for _, s := range sensitive {
		if strings.Contains(key, s) {
			return true
		}
	}
	return redact.Name(key)
}

// userPart is the user part of a URL, up to the last @ before the path, as clients read it. A log needs none of it, and
// some of them are tokens.
var userPart = regexp.MustCompile(`://[^/\s"'<>?#]*@`)

// Redact masks in a text what package redact finds to be a secret, and the user part of URLs. It is a second line of
// defence: what is known to be secret must not be given to a log in the first place.
func Redact(text string) string {
	if strings.Contains(text, "://") && strings.Contains(text, "@") {
		text = userPart.ReplaceAllLiteralString(text, "://"+Masked+"@")
	}
	text, _ = redact.String(text)
	return text
}

// overlap is how far beyond the bound a text is searched, so that a secret which the cut would split is still seen.
const overlap = 1 << 10

// redactText masks and bounds a text for the log. Only the part that may be shown is searched, which bounds the time.
func redactText(text string) string {
	if len(text) <= maxLogged {
		return Redact(text)
	}
	more := len(text) - maxLogged
	text = Redact(text[:min(len(text), maxLogged+overlap)])
	cut := min(len(text), maxLogged)
	for cut > 0 && cut < len(text) && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strings.ToValidUTF8(text[:cut], "") + fmt.Sprintf("… (about %d bytes more)", more)
}

func redactAttr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		if isSensitive(a.Key) && v.String() != "" {
			return slog.String(a.Key, Masked)
		}
		return slog.String(a.Key, redactText(v.String()))
	case slog.KindGroup:
		in := v.Group()
		group := make([]slog.Attr, len(in))
		for i, member := range in {
			group[i] = redactAttr(member)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(group...)}
	case slog.KindAny:
		if isSensitive(a.Key) && v.Any() != nil {
			return slog.String(a.Key, Masked)
		}
		return slog.Any(a.Key, redactAny(v.Any()))
	default:
		return slog.Attr{Key: a.Key, Value: v}
	}
}

// redactAny masks secrets in a value of any type. Errors and Stringers become their text, other values what their JSON
// holds.
func redactAny(v any) (out any) {
	defer func() {
		if p := recover(); p != nil { // a String method of a nil pointer; the log must not stop the program
			out = fmt.Sprintf("!PANIC %T", v)
		}
	}()
	switch v := v.(type) {
	case nil, bool, time.Time, time.Duration:
		return v
	case error:
		return redactText(v.Error())
	case fmt.Stringer:
		return redactText(v.String())
	case []byte:
		return redactText(string(v))
	}
	data, err := json.Marshal(v)
	if err != nil {
		return redactText(fmt.Sprintf("%+v", v))
	}
	if len(data) > maxLogged {
		return redactText(string(data))
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return redactText(string(data))
	}
	return redactTree(tree)
}

func redactTree(v any) any {
	switch v := v.(type) {
	case string:
		return redactText(v)
	case []any:
		for i := range v {
			v[i] = redactTree(v[i])
		}
	case map[string]any:
		for k, member := range v {
			switch member.(type) {
			case float64, bool, nil:
			default:
				if isSensitive(k) {
					v[k] = Masked
					continue
				}
				v[k] = redactTree(member)
			}
		}
	}
	return v
}
