package redact

import (
	"bytes"
	"encoding/base64"
)

// shape is how the tokens of a provider look: a prefix, then so many bytes of a set.
type shape struct {
	prefix string
	kind   string
	min    int // of what comes after the prefix
	max    int // 0: no bound
	set    *[256]bool
	keep   bool // the prefix is no part of the secret
	check  func(body []byte) bool
}

var (
	alnum  = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
	upper  = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
	base32 = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
	hexes  = charset("0123456789abcdefABCDEF")
	ident  = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
	dashed = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
	dotted = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
	padded = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.+/=")
	path   = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./")
)

func charset(chars string) *[256]bool {
	var out [256]bool
	for i := range len(chars) {
		out[chars[i]] = true
	}
	return &out
}

// shapes are grouped by provider. Where a prefix begins another, the longer one is before it.
var shapes = []shape{
	{"AKIA", "aws-key", 16, 16, upper, false, nil}, {"ASIA", "aws-key", 16, 16, upper, false, nil},
	{"ABIA", "aws-key", 16, 16, upper, false, nil}, {"ACCA", "aws-key", 16, 16, upper, false, nil},
	{"ABSK", "aws-key", 80, 0, padded, false, nil},
	{"ghp_", "github-token", 20, 0, alnum, false, nil}, {"gho_", "github-token", 20, 0, alnum, false, nil},
	{"ghu_", "github-token", 20, 0, alnum, false, nil}, {"ghs_", "github-token", 20, 0, dotted, false, nil},
	{"ghr_", "github-token", 20, 0, alnum, false, nil}, {"github_pat_", "github-token", 20, 0, ident, false, nil},
	{"glpat-", "gitlab-token", 16, 0, dotted, false, nil}, {"gldt-", "gitlab-token", 16, 0, dotted, false, nil},
	{"glrt-", "gitlab-token", 16, 0, dotted, false, nil}, {"glcbt-", "gitlab-token", 16, 0, dotted, false, nil},
	{"glptt-", "gitlab-token", 16, 0, dotted, false, nil}, {"glft-", "gitlab-token", 16, 0, dotted, false, nil},
	{"glsoat-", "gitlab-token", 16, 0, dotted, false, nil}, {"glimt-", "gitlab-token", 16, 0, dotted, false, nil},
	{"glagent-", "gitlab-token", 16, 0, dotted, false, nil}, {"gloas-", "gitlab-token", 16, 0, dotted, false, nil},
	{"ATBB", "bitbucket-token", 24, 0, alnum, false, mixed}, {"ATATT3", "atlassian-token", 40, 0, padded, false, nil},
	{"ATCTT3", "atlassian-token", 40, 0, padded, false, nil},
	{"xoxb-", "slack-token", 10, 0, dashed, false, hasNumber}, {"xoxp-", "slack-token", 10, 0, dashed, false, hasNumber},
	{"xoxa-", "slack-token", 10, 0, dashed, false, hasNumber}, {"xoxr-", "slack-token", 10, 0, dashed, false, hasNumber},
	{"xoxs-", "slack-token", 10, 0, dashed, false, hasNumber}, {"xoxo-", "slack-token", 10, 0, dashed, false, hasNumber},
	{"xoxc-", "slack-token", 10, 0, dashed, false, hasNumber}, {"xoxd-", "slack-token", 10, 0, padded, false, hasNumber},
	{"xoxe.", "slack-token", 20, 0, dotted, false, hasNumber}, {"xoxe-", "slack-token", 20, 0, dotted, false, hasNumber},
	{"xapp-", "slack-token", 10, 0, dashed, false, hasNumber},
	{"sk-ant-", "anthropic-key", 12, 0, dashed, false, nil}, {"sk-proj-", "openai-key", 16, 0, dashed, false, nil},
	{"sk-svcacct-", "openai-key", 16, 0, dashed, false, nil}, {"sk-admin-", "openai-key", 16, 0, dashed, false, hasNumber},
	{"sk-or-v1-", "openrouter-key", 16, 0, dashed, false, nil}, {"sk-lf-", "langfuse-key", 16, 0, dashed, false, hasNumber},
	{"pk-lf-", "langfuse-key", 16, 0, dashed, false, hasNumber}, {"sk-", "api-key", 16, 0, dashed, false, notWords},
	{"sk_live_", "stripe-key", 10, 0, alnum, false, nil}, {"sk_test_", "stripe-key", 10, 0, alnum, false, nil},
	{"rk_live_", "stripe-key", 10, 0, alnum, false, nil}, {"rk_test_", "stripe-key", 10, 0, alnum, false, nil},
	{"whsec_", "webhook-secret", 16, 0, padded, false, nil}, {"sk_", "api-key", 24, 0, ident, false, notWords},
	{"AIza", "google-key", 35, 0, dashed, false, nil}, {"ya29.", "google-token", 20, 0, dashed, false, nil},
	{"GOCSPX-", "google-secret", 20, 0, dashed, false, nil}, {"1//0", "google-token", 30, 0, dashed, false, nil},
	{"npm_", "npm-token", 30, 0, alnum, false, nil}, {"pypi-AgE", "pypi-token", 40, 0, dashed, false, nil},
	{"rubygems_", "rubygems-token", 32, 0, hexes, false, nil}, {"oy2", "nuget-key", 43, 43, alnum, false, mixed},
	{"hf_", "huggingface-token", 20, 0, alnum, false, mixed}, {"dckr_pat_", "docker-token", 20, 0, dashed, false, nil},
	{"dckr_oat_", "docker-token", 20, 0, dashed, false, nil}, {"SG.", "sendgrid-key", 38, 0, dotted, false, hasDot},
	{"xkeysib-", "brevo-key", 32, 0, dashed, false, nil}, {"re_", "resend-key", 24, 0, ident, false, mixed},
	{"key-", "mailgun-key", 32, 32, hexes, false, nil}, {"SK", "twilio-key", 32, 32, hexes, false, mixed},
	{"dop_v1_", "digitalocean-token", 32, 0, hexes, false, nil}, {"doo_v1_", "digitalocean-token", 32, 0, hexes, false, nil},
	{"dor_v1_", "digitalocean-token", 32, 0, hexes, false, nil},
	{"shpat_", "shopify-token", 32, 0, hexes, false, nil}, {"shpss_", "shopify-token", 32, 0, hexes, false, nil},
	{"shpca_", "shopify-token", 32, 0, hexes, false, nil}, {"shppa_", "shopify-token", 32, 0, hexes, false, nil},
	{"sq0atp-", "square-token", 20, 0, dashed, false, nil}, {"sq0csp-", "square-token", 20, 0, dashed, false, nil},
	{"EAAC", "facebook-token", 60, 0, alnum, false, mixed}, {"EAAA", "square-token", 60, 0, dashed, false, mixed},
	{"lin_api_", "linear-key", 30, 0, alnum, false, nil}, {"ntn_", "notion-token", 40, 0, alnum, false, nil},
	{"secret_", "notion-token", 43, 43, alnum, false, mixed}, {"figd_", "figma-token", 30, 0, dashed, false, nil},
	{"PMAK-", "postman-key", 50, 0, dashed, false, nil}, {"dapi", "databricks-token", 32, 0, dashed, false, allHex},
	{"hvs.", "vault-token", 20, 0, dotted, false, nil}, {"hvb.", "vault-token", 20, 0, dotted, false, nil},
	{"hvr.", "vault-token", 20, 0, dotted, false, nil}, {"r8_", "replicate-token", 30, 0, alnum, false, nil},
	{"gsk_", "groq-key", 30, 0, alnum, false, nil}, {"xai-", "xai-key", 30, 0, dashed, false, mixed},
	{"pplx-", "perplexity-key", 30, 0, alnum, false, mixed}, {"nvapi-", "nvidia-key", 30, 0, dashed, false, nil},
	{"tvly-", "tavily-key", 20, 0, dashed, false, mixed}, {"jina_", "jina-key", 40, 0, alnum, false, nil},
	{"tskey-", "tailscale-key", 16, 0, dashed, false, hasNumber}, {"rnd_", "render-key", 24, 0, alnum, false, mixed},
	{"sbp_", "supabase-key", 32, 0, hexes, false, nil}, {"sb_secret_", "supabase-key", 20, 0, dashed, false, nil},
	{"sntrys_", "sentry-token", 30, 0, padded, false, nil}, {"sntryu_", "sentry-token", 30, 0, hexes, false, nil},
	{"phx_", "posthog-key", 30, 0, ident, false, nil}, {"dp.pt.", "doppler-token", 30, 0, alnum, false, nil},
	{"dp.st.", "doppler-token", 30, 0, dotted, false, nil}, {"CFPAT-", "contentful-token", 30, 0, dashed, false, nil},
	{"ops_eyJ", "1password-token", 30, 0, dashed, false, nil}, {"lsv2_pt_", "langsmith-key", 32, 0, ident, false, nil},
	{"lsv2_sk_", "langsmith-key", 32, 0, ident, false, nil}, {"glc_", "grafana-token", 30, 0, padded, false, nil},
	{"glsa_", "grafana-token", 30, 0, ident, false, nil}, {"NRAK-", "newrelic-key", 20, 0, alnum, false, nil},
	{"pul-", "pulumi-token", 40, 40, hexes, false, nil}, {"dt0c01.", "dynatrace-token", 40, 0, dotted, false, nil},
	{"dt0s01.", "dynatrace-token", 40, 0, dotted, false, nil}, {"AKCp", "artifactory-key", 60, 0, alnum, false, nil},
	{"LTAI", "aliyun-key", 12, 26, alnum, false, mixed}, {"AKID", "tencent-key", 28, 36, alnum, false, mixed},
	{"ALTAK", "baidu-key", 16, 24, alnum, false, mixed}, {"bce-v3/ALTAK", "baidu-key", 30, 0, path, false, nil},
	{"AGE-SECRET-KEY-1", "age-key", 30, 0, upper, false, nil}, {"btl_", "butler-token", 7, 0, dashed, false, notNames},
	{"AQoDYX", "aws-token", 60, 0, padded, false, nil}, {"FwoGZX", "aws-token", 60, 0, padded, false, nil},
	{"IQoJb3JpZ2lu", "aws-token", 60, 0, padded, false, nil}, {"gAAAAAB", "fernet-token", 60, 0, padded, false, nil},
	{"cmVmdGtu", "artifactory-key", 50, 0, alnum, false, nil}, {"fw_", "fireworks-key", 24, 0, alnum, false, mixed},
	{"fc-", "firecrawl-key", 32, 32, hexes, false, nil}, {"co_", "api-key", 40, 0, alnum, false, mixed},
	{"amzn.mws.", "aws-key", 30, 0, dotted, false, nil}, {"shpua_", "shopify-token", 32, 0, hexes, false, nil},
	{"SA", "nats-seed", 56, 56, base32, false, nil}, {"SO", "nats-seed", 56, 56, base32, false, nil},
	{"SU", "nats-seed", 56, 56, base32, false, nil}, {"SN", "nats-seed", 56, 56, base32, false, nil},
	{"SC", "nats-seed", 56, 56, base32, false, nil}, {"SX", "nats-seed", 56, 56, base32, false, nil},
	{"eyJ", "web-token", 16, 0, dotted, false, webToken},
	{"LS0tLS1CRUdJTiB", kindKey, 40, 0, padded, false, nil},
	{"hooks.slack.com/services/", "slack-webhook", 20, 0, path, true, nil},
	{"hooks.slack.com/workflows/", "slack-webhook", 20, 0, path, true, nil},
	{"discord.com/api/webhooks/", "discord-webhook", 30, 0, path, true, nil},
	{"discordapp.com/api/webhooks/", "discord-webhook", 30, 0, path, true, nil},
	{"open.feishu.cn/open-apis/bot/v2/hook/", "feishu-webhook", 20, 0, dashed, true, nil},
	{"open.larksuite.com/open-apis/bot/v2/hook/", "feishu-webhook", 20, 0, dashed, true, nil},
	{"qyapi.weixin.qq.com/cgi-bin/webhook/send?key=", "wecom-webhook", 20, 0, dashed, true, nil},
	{"sctapi.ftqq.com/", "serverchan-key", 20, 0, alnum, true, nil},
	{"api.telegram.org/bot", "telegram-token", 30, 0, charset("0123456789:_-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
		true, nil},
}

func hasNumber(b []byte) bool { return hasDigit(b) }
func hasDot(b []byte) bool    { return bytes.IndexByte(b, '.') > 0 }

// notWords refuses what is made of words: sk-learn-contrib-project.
func notWords(b []byte) bool {
	t := traitsOf(b)
	return t.digit > 1 && !kebab(b) && t.changes >= 2
}

// notNames refuses names of fields that begin like a token.
func notNames(b []byte) bool { return hasDigit(b) || len(b) >= 20 }

func mixed(b []byte) bool {
	t := traitsOf(b)
	return t.changes >= 3 && (t.digit > 0 || t.upper > 2 && t.lower > 2) || len(b) < 16 && t.digit > 0 && t.upper+t.lower > 0
}

func allHex(b []byte) bool {
	for _, c := range b[:32] {
		if !hexes[c] {
			return false
		}
	}
	return hasDigit(b)
}

// webToken says whether base64 after "eyJ" is the head of a JSON web token: a JSON object, a dot, more.
func webToken(b []byte) bool {
	dot := bytes.IndexByte(b, '.')
	return dot >= 8 && len(b)-dot > 4
}

// starts finds by two bytes what words and shapes may begin at a word.
var (
	startOf [1 << 16]uint8
	groups  = [][]*shape{nil}
	byWord  [1 << 16]bool // two lower-case letters with which a word of words begins
)

func init() {
	for i := range shapes {
		sh := &shapes[i]
		at := int(sh.prefix[0])<<8 | int(sh.prefix[1])
		if startOf[at] == 0 {
			groups = append(groups, nil)
			startOf[at] = uint8(len(groups) - 1)
		}
		groups[startOf[at]] = append(groups[startOf[at]], sh)
	}
}

// shape takes out a token that begins at i, and gives its end; 0 when there is none.
func (s *scanner) shape(i int) int {
	text := s.text
	if i+1 >= s.stop {
		return 0
	}
	for _, sh := range groups[startOf[int(text[i])<<8|int(text[i+1])]] {
		body := i + len(sh.prefix)
		if body > s.stop || string(text[i:body]) != sh.prefix {
			continue
		}
		end := body
		for end < s.stop && sh.set[text[end]] {
			end++
		}
		for end > body && (text[end-1] == '.' || text[end-1] == '-' && sh.max == 0) {
			end--
		}
		n := end - body
		if end == s.stop && (sh.max == 0 || n < sh.max) {
			end, n = s.wrapped(i, end, n, sh.min)
		}
		if n < sh.min || sh.max > 0 && (n > sh.max || end < len(text) && isWord[text[end]]) ||
			sh.check != nil && !sh.check(joined(text[body:end])) {
			if end <= s.stop && end-i > 256 && s.tooMany(end) {
				return end
			}
			continue
		}
		if sh.kind == kindKey && !encodedKey(text[i:min(end, s.stop)]) {
			return end
		}
		start := i
		if sh.keep {
			start = body
		}
		s.add(start, end, sh.kind)
		return end
	}
	return 0
}

// joined is a token without the breaks of lines in it.
func joined(b []byte) []byte {
	if bytes.IndexByte(b, '\n') < 0 {
		return b
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\n"), nil), []byte("\r"), nil)
}

// wrapped follows a token that reaches the end of its line into the next lines: n bytes of it are on the first, at least
// min are needed in all. It gives where the token ends and its length.
func (s *scanner) wrapped(start, end, n, min int) (int, int) {
	if s.isCut() {
		return end, n
	}
	stop, width := s.stop, s.stop-s.line
	for range maxContinued {
		line, le, ok := s.next(stop, start)
		if !ok {
			break
		}
		to := line
		for to < le && isToken[s.text[to]] {
			to++
		}
		run := s.text[line:to]
		if len(run) == 0 || to < le && !isQuote(s.text[to]) && s.text[to] != ',' || assignment(run) {
			break
		}
		need := n < min && n+len(run) >= min
		if !need && !(n >= 12 && continues(run, width)) {
			break
		}
		end, n, stop = to, n+len(run), le
		if to < le {
			break
		}
	}
	return end, n
}

// continues says whether a run of token characters at the begin of a line may be the rest of a token.
func continues(run []byte, width int) bool {
	if random(run) || width >= 60 && len(run) <= width {
		return true
	}
	t := traitsOf(run)
	return len(run) < 8 && t.changes >= 2 || len(run) > 1 && run[len(run)-1] == '=' && t.changes > 0
}

// assignment says whether a run is name=value.
func assignment(run []byte) bool {
	n := bytes.IndexByte(run, '=')
	return n > 1 && n+1 < len(run) && run[n+1] != '=' && onlyName(run[:n]) && !hasDigit(run[:n])
}

// numbered takes out what begins with digits: a token of a Telegram bot.
func (s *scanner) numbered(i int) int {
	e := i
	for e < s.stop && s.text[e] >= '0' && s.text[e] <= '9' && e-i < 11 {
		e++
	}
	if e-i < 8 || e-i > 10 || e >= s.stop || s.text[e] != ':' {
		return 0
	}
	body := e + 1
	for e = body; e < s.stop && dashed[s.text[e]]; e++ {
	}
	n := e - body
	if n < 20 {
		return 0
	}
	if e == s.stop && n < 35 {
		e, n = s.wrapped(i, e, n, 33)
	}
	if n < 33 || n > 40 || !random(joined(s.text[body:e])) {
		return 0
	}
	s.add(i, e, "telegram-token")
	return e
}

// bot takes out a token of a Discord bot: an id in base64, a time, a code.
func (s *scanner) bot(i int) int {
	e := i
	for e < s.stop && dotted[s.text[e]] && e-i < 128 {
		e++
	}
	parts := bytes.Split(s.text[i:e], []byte("."))
	if len(parts) != 3 || len(parts[0]) < 23 || len(parts[0]) > 28 || len(parts[1]) != 6 || len(parts[2]) < 27 {
		return 0
	}
	id, err := base64.RawStdEncoding.DecodeString(string(parts[0]))
	if err != nil || !onlyDigits(id) {
		return 0
	}
	s.add(i, e, "discord-token")
	return e
}
