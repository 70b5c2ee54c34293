package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/reference/settings.md anew")

const referencePage = "../../docs/reference/settings.md"

// load reads settings from a file's text ("" for none) and an environment that has a home folder.
func load(t *testing.T, file string, env ...string) (Settings, []Warning, error) {
	t.Helper()
	o := Options{Environ: append([]string{"HOME=/home/ann"}, env...)}
	if file != "" {
		o.File = filepath.Join(t.TempDir(), "butler.yaml")
		require.NoError(t, os.WriteFile(o.File, []byte(file), 0o600))
	}
	return Load(o)
}

func value(s Settings, key string) Value {
	for _, v := range s.Describe() {
		if v.Key == key {
			return v
		}
	}
	panic("no setting " + key)
}

func TestReferencePageIsFresh(t *testing.T) {
	want := Reference()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(referencePage), 0o755))
		require.NoError(t, os.WriteFile(referencePage, []byte(want), 0o644))
	}
	got, err := os.ReadFile(referencePage)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "stale: run go generate ./pkg/config")
}

func TestTheTableIsConsistent(t *testing.T) {
	t.Parallel()
	keys, envs := map[string]bool{}, map[string]bool{}
	for _, s := range All() {
		require.False(t, keys[s.Key], "key %s twice", s.Key)
		require.False(t, envs[s.Env], "variable %s twice", s.Env)
		keys[s.Key], envs[s.Env] = true, true
		require.LessOrEqual(t, strings.Count(s.Key, "."), 1, "%s: the file has two levels", s.Key)
		require.True(t, strings.HasSuffix(s.Description, "."), "%s: description is a sentence", s.Key)
		require.True(t, s.Default != "" || s.DefaultNote != "", "%s: says what its default means", s.Key)
		require.NotContains(t, s.Description+s.DefaultNote, "|", "%s would break the table of the page", s.Key)
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	s, warnings, err := load(t, "")
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, "/home/ann/.local/share/butler", s.DataDir)
	require.Equal(t, "/home/ann/.local/share/butler/keys/a", s.Path("keys", "a"))
	require.Equal(t, "127.0.0.1:8080", s.HTTP.Addr)
	require.Equal(t, "127.0.0.1:8081", s.Ops.Addr)
	require.True(t, s.NATS.Embedded())
	require.Equal(t, "127.0.0.1:4222", s.NATS.Addr)
	require.Zero(t, s.NATS.SyncInterval)
	require.Equal(t, 1, s.NATS.Replicas)
	require.Equal(t, "127.0.0.1:8092", s.RPC.BrainTarget)
	require.Equal(t, "127.0.0.1:8093", s.RPC.RegistryTarget)
	require.True(t, s.Model.Demo())
	require.Equal(t, Model{ContextWindow: 128000, IdleTimeout: 2 * time.Minute, Retries: 3}, s.Model)
	require.Equal(t, Turn{MaxSteps: 15, Timeout: 10 * time.Minute, MaxConcurrent: 256}, s.Turn)
	require.Equal(t, Accounts{AdminUser: "admin", SignInLifetime: 24 * time.Hour, PasswordMemoryKiB: 19456,
		PasswordTime: 2}, s.Accounts)
	require.Equal(t, Messages{Rate: 30, Burst: 100, MaxWaiting: 100}, s.Messages)
	require.Equal(t, "en", s.Language)
	require.Equal(t, Log{Level: slog.LevelInfo, Format: "auto"}, s.Log)
	require.Equal(t, CookieSecureAuto, s.HTTP.CookieSecure)

	d := Defaults("/srv/butler")
	require.Equal(t, "/srv/butler", d.DataDir)
	require.Equal(t, s.Turn, d.Turn)
}

func TestDataDirFollowsXDG(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ xdg, want string }{
		{"/var/ann", "/var/ann/butler"},
		{"relative/is/ignored", "/home/ann/.local/share/butler"},
	} {
		s, _, err := load(t, "", "XDG_DATA_HOME="+c.xdg)
		require.NoError(t, err)
		require.Equal(t, c.want, s.DataDir)
		require.Equal(t, FromDefault, value(s, "data_dir").Origin.Source)
	}
	_, _, err := Load(Options{Environ: []string{}})
	require.ErrorContains(t, err, "BUTLER_DATA_DIR: set it to a folder")
	s, _, err := load(t, "", "BUTLER_DATA_DIR=~/b")
	require.NoError(t, err)
	require.Equal(t, "/home/ann/b", s.DataDir)
}

func TestLaterSourcesWinAndOriginsAreTold(t *testing.T) {
	t.Parallel()
	file := `# settings
http:
  addr: 127.0.0.1:9001
  trusted_proxies: [10.0.0.0/8, "192.168.1.7"]
nats:
turn:
  max_steps: 7
log: {level: warn}
language: null
rpc:
  brain_addr: ":7000"
`
	s, warnings, err := load(t, file, "BUTLER_HTTP_ADDR=127.0.0.1:9002", "BUTLER_NATS_SYNC=2m", "LOG_LEVEL=",
		"CORS_ALLOWED_ORIGINS=https://a.example/, http://b.example:3000")
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, "127.0.0.1:9002", s.HTTP.Addr)
	require.Equal(t, "env BUTLER_HTTP_ADDR", value(s, "http.addr").Origin.String())
	require.Equal(t, 7, s.Turn.MaxSteps)
	require.Contains(t, value(s, "turn.max_steps").Origin.String(), "butler.yaml:7")
	require.Equal(t, "10.0.0.0/8,192.168.1.7/32", value(s, "http.trusted_proxies").Value)
	require.Equal(t, []string{"https://a.example", "http://b.example:3000"}, s.HTTP.AllowedOrigins)
	require.Equal(t, 2*time.Minute, s.NATS.SyncInterval)
	require.Equal(t, "2m", value(s, "nats.sync").Value)
	require.Equal(t, slog.LevelWarn, s.Log.Level, "an empty variable counts as not set")
	require.Equal(t, "127.0.0.1:7000", s.RPC.BrainTarget)
	require.Equal(t, "derived from BUTLER_BRAIN_ADDR", value(s, "rpc.brain_target").Origin.String())
	require.Equal(t, "default", value(s, "language").Origin.String())
}

func TestConfigFileByVariable(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "b.yaml")
	require.NoError(t, os.WriteFile(name, []byte("language: zh"), 0o600))
	s, warnings, err := load(t, "", "BUTLER_CONFIG="+name)
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, "zh", s.Language)
}

func TestEveryProblemIsToldAtOnce(t *testing.T) {
	t.Parallel()
	file := `htpp:
  addr: x
http:
  adr: x
  addr: nowhere
nats.replicas: 2
model:
  base_url: ${NOWHERE}
`
	_, _, err := load(t, file, "BUTLER_TURN_TIMEOUT=ten minutes", "INTERNAL_SERVICE_TOKEN=shortsecret",
		"BUTLER_TLS_CERT=/a", "BUTLER_OPS_ADDR=127.0.0.1:99999",
		"BUTLER_DATABASE_URL=mysql://ann:hunter2@db/x", "BUTLER_NATS_URL=nats://ann:hunter2@a:4222,http://b")
	var invalid *InvalidError
	require.ErrorAs(t, err, &invalid)
	text := err.Error()
	for _, want := range []string{
		"butler.yaml:1: htpp is not a setting; did you mean http?",
		"butler.yaml:4: http.adr is not a setting; did you mean http.addr?",
		`butler.yaml:5: http.addr must be host:port such as 127.0.0.1:8080, not "nowhere"`,
		"butler.yaml:6: nats.replicas must be 1, 3 or 5, not 2",
		"butler.yaml:8: model.base_url needs the environment variable NOWHERE, which is not set",
		`BUTLER_TURN_TIMEOUT: must be a duration such as 90s, 10m or 24h, not "ten minutes"`,
		"INTERNAL_SERVICE_TOKEN: must have at least 32 characters, not 11",
		"BUTLER_TLS_CERT, BUTLER_TLS_KEY, BUTLER_TLS_CA: set all three",
		"BUTLER_OPS_ADDR: must end in a port from 0 to 65535",
		"BUTLER_DATABASE_URL: must be a URL that begins with postgres:// or postgresql://",
		"BUTLER_NATS_URL: must be a URL that begins with nats://",
	} {
		require.Contains(t, text, want)
	}
	require.Len(t, invalid.Problems, 11, text)
	require.NotContains(t, text, "hunter2")
	require.NotContains(t, text, "shortsecret")
}

func TestSettingsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ env, want string }{
		{"BUTLER_HTTP_ADDR=8080", "host:port"},
		{"BUTLER_HTTP_ADDR=a b:80", "name a host"},
		{"BUTLER_BRAIN_TARGET=brain", "host:port or dns:///"},
		{"BUTLER_BRAIN_TARGET=dns:///", "host:port or dns:///"},
		{"BUTLER_BRAIN_TARGET=unix:", "socket"},
		{"BUTLER_NATS_SYNC=sometimes", "always, or a duration"},
		{"BUTLER_NATS_SYNC=0s", "must be 1ms to 1h"},
		{"BUTLER_NATS_REPLICAS=4", "1, 3 or 5"},
		{"BUTLER_MAX_STEPS=0", "must be 1 to 1000"},
		{"BUTLER_MAX_STEPS=many", "whole number"},
		{"BUTLER_PASSWORD_MEMORY_KIB=1", "must be 8192 to"},
		{"BUTLER_PASSWORD_MEMORY_KIB=99999999999999999999", "whole number"},
		{"BUTLER_TURN_TIMEOUT=0s", "must be 1s to 24h"},
		{"BUTLER_TURN_TIMEOUT=-1m", "must be 1s to 24h, not -1m"},
		{"BUTLER_BASE_URL=https://ann:hunter2@api.example/v1", "user name or password"},
		{"BUTLER_BASE_URL=api.example/v1", "begins with http:// or https://"},
		{"BUTLER_BASE_URL=http://h:0/v1", "port"},
		{"BUTLER_BASE_URL=https://api.example/v1", "BUTLER_MODEL: set it"},
		{"BUTLER_MODEL=gpt-9", "BUTLER_BASE_URL: set it"},
		{"BUTLER_API_TOKEN=hunter2", "BUTLER_BASE_URL: set it"},
		{"BUTLER_PUBLIC_URL=https://b.example/butler", "without a path"},
		{"CORS_ALLOWED_ORIGINS=*", "name each origin"},
		{"BUTLER_TRUSTED_PROXIES=proxy", "10.0.0.0/8"},
		{"BUTLER_TRUSTED_PROXIES=" + strings.Repeat("10.0.0.1,", 101), "at most 100"},
		{"BUTLER_COOKIE_SECURE=maybe", "one of auto, true, false"},
		{"BUTLER_LANGUAGE=fr", "one of en, zh"},
		{"LOG_LEVEL=loud", "one of debug, info, warn, error"},
		{"INITIAL_ADMIN_PASS=hunter2", "at least 8"},
		{"INITIAL_ADMIN_USER=a\nb", "control characters"},
		{"INITIAL_ADMIN_USER=" + strings.Repeat("a", 65), "1 to 64"},
		{"INTERNAL_SERVICE_TOKEN=" + strings.Repeat("a", maxText+1), "longer than"},
	} {
		_, _, err := load(t, "", c.env)
		require.ErrorContains(t, err, c.want, c.env)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestSettingsThatAreTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ env, key, want string }{
		{"BUTLER_HTTP_ADDR=:0", "http.addr", ":0"},
		{"BUTLER_HTTP_ADDR=[::1]:80", "http.addr", "[::1]:80"},
		{"BUTLER_BRAIN_ADDR=[::]:90", "rpc.brain_target", "[::1]:90"},
		{"BUTLER_BRAIN_TARGET=dns:///brain.butler.svc:8092", "rpc.brain_target", "dns:///brain.butler.svc:8092"},
		{"BUTLER_BRAIN_TARGET=unix:///run/brain.sock", "rpc.brain_target", "unix:///run/brain.sock"},
		{"BUTLER_DATABASE_URL=postgres://ann:hunter2@db/x?sslmode=disable&password=hunter2", "database.url",
			"postgres://REDACTED@db/x?password=REDACTED&sslmode=disable"},
		{"BUTLER_NATS_URL=nats://ann:hunter2@a:4222, tls://b", "nats.url", "nats://REDACTED@a:4222,tls://b"},
		{"INTERNAL_SERVICE_TOKEN=hunter2" + strings.Repeat("x", 32), "rpc.token", mask},
		{"LOG_LEVEL=WARNING", "log.level", "warn"},
		{"JWT_TOKEN_EXPIRATION=168h", "accounts.sign_in_lifetime", "168h"},
		{"BUTLER_TURN_TIMEOUT=90s", "turn.timeout", "1m30s"},
	} {
		s, _, err := load(t, "", c.env)
		require.NoError(t, err, c.env)
		require.Equal(t, c.want, value(s, c.key).Value)
		dump, err := json.Marshal(s)
		require.NoError(t, err)
		for _, printed := range []string{fmt.Sprintf("%v %+v %#v %s", s, s, s, s.RPC.Token),
			fmt.Sprintf("%+v %#v %+v %#v %+v %#v", s.RPC, s.RPC, s.Database, s.Database, s.NATS, s.NATS), string(dump)} {
			require.NotContains(t, printed, "hunter2")
		}
	}
}

func TestModelEndpoint(t *testing.T) {
	t.Parallel()
	s, warnings, err := load(t, "", "ANTHROPIC_API_KEY=key", "BUTLER_MODEL=claude")
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, AnthropicBaseURL, s.Model.BaseURL)
	require.Equal(t, "key", s.Model.APIToken.Reveal())
	require.Equal(t, "derived from ANTHROPIC_API_KEY", value(s, "model.base_url").Origin.String())

	s, _, err = load(t, "", "ANTHROPIC_API_KEY=key", "BUTLER_MODEL=m", "BUTLER_BASE_URL=http://127.0.0.1:1234/v1")
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:1234/v1", s.Model.BaseURL)
	require.Empty(t, s.Model.APIToken, "Anthropic's key is for Anthropic only")

	s, warnings, err = load(t, "", "ANTHROPIC_API_KEY=key")
	require.NoError(t, err)
	require.True(t, s.Model.Demo())
	require.Len(t, warnings, 1)
}

func TestUnknownVariablesAreWarnings(t *testing.T) {
	t.Parallel()
	_, warnings, err := Load(Options{
		Environ: []string{"HOME=/h", "BUTLER_HTTP_ADR=hunter2", "BUTLER_WHOLLY_DIFFERENT_THING=1", "OTHER=1",
			"BUTLER_SERVICE_HOST=1", "BUTLER_PORT=tcp://1", "BUTLER_GATEWAY_PORT_8080_TCP_ADDR=1",
			"BUTLER_GATEWAY_SERVICE_PORT_HTTP=1", "BUTLER_URL=1"},
		KnownEnv: []string{"BUTLER_URL"},
	})
	require.NoError(t, err)
	require.Equal(t, []Warning{
		"environment variable BUTLER_HTTP_ADR is not a setting and has no effect; did you mean BUTLER_HTTP_ADDR?",
		"environment variable BUTLER_WHOLLY_DIFFERENT_THING is not a setting and has no effect",
	}, warnings)

	_, warnings, err = load(t, "model: {name: x, base_url: '${BUTLER_MY_HOST}'}", "BUTLER_MY_HOST=http://h")
	require.NoError(t, err)
	require.Empty(t, warnings, "the file uses it")

	env := []string{"HOME=/h"}
	for i := range 100 {
		env = append(env, fmt.Sprintf("BUTLER_%d=1", i))
	}
	_, warnings, err = Load(Options{Environ: env})
	require.NoError(t, err)
	require.Len(t, warnings, 21)
}

func TestReload(t *testing.T) {
	t.Parallel()
	old, _, err := load(t, "", "LOG_LEVEL=info")
	require.NoError(t, err)
	next, _, err := load(t, "", "LOG_LEVEL=debug", "BUTLER_HTTP_ADDR=127.0.0.1:1")
	require.NoError(t, err)
	merged, changed, restart := old.Reload(next)
	require.Equal(t, []string{"log.level"}, changed)
	require.Equal(t, []string{"http.addr"}, restart)
	require.Equal(t, slog.LevelDebug, merged.Log.Level)
	require.Equal(t, "127.0.0.1:8080", merged.HTTP.Addr)
	require.Equal(t, slog.LevelInfo, old.Log.Level)
	_, changed, restart = merged.Reload(merged)
	require.Empty(t, changed)
	require.Empty(t, restart)
}
