package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	jwt := "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.hunter2hunter2"
	seed := "SU" + strings.Repeat("A", 56)
	for in, want := range map[string]string{
		"nothing here":                         "nothing here",
		"Authorization: Bearer hunter2hunter2": "Authorization: Bearer [REDACTED:authorization]",
		"basic aHVudGVyMg==":                   "basic [REDACTED:authorization]",
		"btl_hunter2 was refused":              "[REDACTED:butler-token] was refused",
		"key sk-ant-hunter2-hunter2":           "key [REDACTED:anthropic-key]",
		"task-list and risk-free":              "task-list and risk-free",
		"postgres://ann:hunter2@db/x":          "postgres://[REDACTED]@db/x",
		"postgres://ann:hunt@er2@db/x":         "postgres://[REDACTED]@db/x",
		"nats://hunter2@db":                    "nats://[REDACTED]@db",
		"https://h/a@b":                        "https://h/a@b",
		"GET /api/ws?token=hunter2&after=7":    "GET /api/ws?token=[REDACTED:token]&after=7",
		"?access_token=hunter2":                "?access_token=[REDACTED:token]",
		"%3Ftoken%3Dhunter2":                   "%3Ftoken%3D[REDACTED:token]",
		"password='hunter2 x' user=ann":        "password='[REDACTED:password]' user=ann",
		`{"api_key": "hunter2", "a": "b"}`:     `{"api_key": "[REDACTED:secret]", "a": "b"}`,
		"invalid token: it has expired":        "invalid token: it has expired",
		"prompt_tokens=12":                     "prompt_tokens=12",
		"got " + jwt:                           "got [REDACTED:web-token]",
		"seed " + seed + ".":                   "seed [REDACTED:nats-seed].",
		"-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----!": "[REDACTED:private-key]\n!",
		"-----BEGIN PRIVATE KEY-----\nhunter2hunter2":                            "[REDACTED:private-key]\n",
	} {
		require.Equal(t, want, Redact(in), in)
		require.Equal(t, want, Redact(want), "masking twice changes nothing")
	}
}

// leaky is a value whose JSON holds secrets.
type leaky struct {
	URL      string
	Password string
	Tokens   int
}

func TestNoSecretReachesTheLog(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log := NewLogger(&out, format, slog.LevelDebug)
		log = log.With("Authorization", "hunter2", "plain", "kept-1").WithGroup("g").With("x-api-key", "hunter2")
		log.Info("dial postgres://ann:hunter2@db", "token", "hunter2", "err",
			fmt.Errorf("no: %w", errors.New("/ws?token=hunter2")),
			"header", http.Header{"Cookie": {"butler=hunter2"}, "Accept": {"kept-2"}},
			"value", &leaky{"https://hunter2@h", "hunter2", 7},
			slog.Group("inner", "session_cookie", "hunter2", "url", "http://h/?secret=hunter2", "plain", "kept-3"),
			"bytes", []byte("Bearer hunter2hunter2"), "list", []string{"btl_hunter2"},
			"lazy", lazy{}, "func", func() {}, "nil", nil, "nilp", (*time.Location)(nil), "error", error(nil),
			"prompt_tokens", 12, "took", 3*time.Second, "any_token", []string{"hunter2"}, "stringer", stringer{})
		require.NotContains(t, out.String(), "hunter2")
		for _, want := range []string{"kept-1", "kept-2", "kept-3", "prompt_tokens", "12"} {
			require.Contains(t, out.String(), want)
		}
		if format == "json" {
			require.True(t, json.Valid(out.Bytes()))
		}
	}
}

type lazy struct{}

func (lazy) LogValue() slog.Value { return slog.StringValue("token=hunter2") }

type stringer struct{}

func (stringer) String() string { return "token=hunter2" }

type panics struct{}

func (panics) Error() string { panic("defect") }

func TestLogSurvivesItsValues(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := NewLogger(&out, "json", slog.LevelInfo)
	log.Info("long "+strings.Repeat("é", 1<<20), "err", panics{},
		"huge", map[string]string{"a": strings.Repeat("x", 1<<20)},
		"cut", strings.Repeat("x", maxLogged-20)+"postgres://ann:hunter2hunter2@db")
	require.Less(t, out.Len(), 5*maxLogged)
	require.Contains(t, out.String(), "bytes more")
	require.Contains(t, out.String(), "PANIC")
	require.NotContains(t, out.String(), "hunter")
	require.NotContains(t, out.String(), "\\ufffd")
}

func TestRecordsCarryTheTrace(t *testing.T) {
	var out bytes.Buffer
	tel := New(Options{Service: "gateway", Output: &out, LogFormat: "json"})
	defer func() { require.NoError(t, tel.Close(context.Background())) }()
	ctx, span := tel.Tracer.Tracer("test").Start(context.Background(), "turn")
	defer span.End()
	tel.Log.InfoContext(ctx, "hello")
	var record map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &record))
	require.Equal(t, span.SpanContext().TraceID().String(), record["trace_id"])
	require.Equal(t, span.SpanContext().SpanID().String(), record["span_id"])
	require.Equal(t, "gateway", record["service"])
	require.False(t, span.IsRecording(), "nobody takes the spans")

	out.Reset()
	tel.Log.Debug("unseen")
	require.Empty(t, out.String())
	tel.Level.Set(slog.LevelDebug)
	tel.Log.Debug("seen")
	require.Contains(t, out.String(), "seen")
}

func TestSpansReachTheCollector(t *testing.T) {
	paths := make(chan string, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths <- r.URL.Path }))
	defer collector.Close()
	tel := New(Options{Output: &bytes.Buffer{}, OTLPEndpoint: collector.URL + "/"})
	_, span := tel.Tracer.Tracer("test").Start(context.Background(), "turn")
	require.True(t, span.IsRecording())
	span.End()
	require.NoError(t, tel.Close(context.Background()))
	require.NoError(t, tel.Close(context.Background()))
	require.Equal(t, "/v1/traces", <-paths)
	require.Empty(t, paths)
}

func FuzzRedact(f *testing.F) {
	f.Add("://a@b token=x Bearer abcdefgh")
	f.Add(`"secret": 'a`)
	f.Fuzz(func(t *testing.T, text string) {
		once := redactText(text)
		if len(once) > 8*maxLogged {
			t.Fatalf("%d bytes of %d", len(once), len(text))
		}
	})
}
