package telemetry

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Masked stands where a secret was.
const Masked = "[redacted]"

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
	return false
}

// pattern is a shape of secrets. A text is searched only when it holds one of the hints (of its lower-case form with
// fold): searching costs a hundred times as much as looking for a hint.
type pattern struct {
	hints []string
	fold  bool
	find  *regexp.Regexp
	with  string
}

var patterns = []pattern{
	{[]string{"PRIVATE KEY"}, false,
		regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), Masked},
	{[]string{"NKEY SEED"}, false,
		regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*NKEY SEED-----.*?(-+END [A-Z ]*NKEY SEED-+|$)`), Masked},
	{[]string{"bearer", "basic"}, true,
		regexp.MustCompile(`(?i)\b(bearer|basic)(\s+|%20)[A-Za-z0-9._~+/=-]{6,}`), "$1 " + Masked},
	// The user part of a URL, up to the last @ before the path, as clients read it.
	{[]string{"@"}, false, regexp.MustCompile(`://[^/\s"'<>?#]*@`), "://" + Masked + "@"},
	{[]string{"=", "%3d", `":`, `':`}, true,
		regexp.MustCompile(`(?i)((?:\b|%3F|%26)(?:[a-z]+[_-])?(?:token|ticket|password|passwd|secret|api[_-]?key))` +
			`(=|%3D|["']:\s?)("[^"]*"?|'[^']*'?|[^&\s"',;}]+)`), "$1$2" + Masked},
	{[]string{"btl_"}, false, regexp.MustCompile(`\bbtl_[A-Za-z0-9_-]+`), Masked},
	{[]string{"sk-"}, false, regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{8,}`), Masked},
	// JSON web tokens.
	{[]string{"eyJ"}, false, regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.?[A-Za-z0-9_-]*`), Masked},
	// Seeds of nkeys.
	{[]string{"SA", "SO", "SU", "SN", "SC", "SX"}, false, regexp.MustCompile(`\bS[AOUNCX][A-Z2-7]{56}\b`), Masked},
}

func (p pattern) mayBeIn(text, lower string) bool {
	if p.fold {
		text = lower
	}
	for _, h := range p.hints {
		if strings.Contains(text, h) {
			return true
		}
	}
	return false
}

// Redact masks in a text what looks like a secret: bearer tokens, btl_… and sk-… tokens, web tokens, nkey seeds,
// private keys, the user part of URLs, and the value after token=, password= and the like. It is a second line of defence: what
// is known to be secret must not be given to a log in the first place.
func Redact(text string) string {
	lower := strings.ToLower(text)
	for _, p := range patterns {
		if !p.mayBeIn(text, lower) {
			continue
		}
		text = p.find.ReplaceAllString(text, p.with)
	}
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
