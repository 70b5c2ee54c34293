package modeltest_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/butlerhub/butler/internal/modeltest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func post(t testing.TB, url, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(got)
}

const (
	streamed = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	whole    = `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"hi"}]}],` +
		`"tools":[{"type":"function","function":{"name":"f"}}]}`
)

func TestEcho(t *testing.T) {
	s := modeltest.Start(t)
	status, body := post(t, s.URL(), streamed)
	require.Equal(t, 200, status)
	require.Equal(t, 5, strings.Count(body, `"choices":`), body)
	require.Contains(t, body, `"delta":{"content":"answ"}`)
	require.Contains(t, body, `"finish_reason":"stop"`)
	require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))

	status, body = post(t, s.URL(), whole)
	require.Equal(t, 200, status)
	require.Contains(t, body, `"content":"answer to: hi"`)
	require.Contains(t, body, `"total_tokens":30`)

	got := s.Requests()
	require.Len(t, got, 2)
	require.Equal(t, []string{"f"}, got[1].Tools)
	require.Equal(t, "hi", got[1].LastUser())
	require.False(t, got[1].Stream)
	require.Equal(t, 2, s.Count())
	require.Zero(t, s.Active())

	status, _ = post(t, s.URL(), `{"messages":`)
	require.Equal(t, 400, status)
}

func TestScript(t *testing.T) {
	s := modeltest.Start(t)
	s.On("hi", modeltest.Text("by rule"))
	s.Next(modeltest.Refuse(429, "slow", "slow down"))
	s.Func(func(r *modeltest.Request) modeltest.Reply {
		if r.N == 2 {
			return modeltest.Reply{modeltest.Text("by func "), modeltest.Tool("f", `{"a":1}`)}
		}
		return nil
	})
	status, body := post(t, s.URL(), streamed)
	require.Equal(t, 429, status)
	require.Contains(t, body, "slow down")
	_, body = post(t, s.URL(), whole)
	require.Contains(t, body, "by func ")
	require.Contains(t, body, `"arguments":"{\"a\":1}"`)
	require.Contains(t, body, `"finish_reason":"tool_calls"`)
	_, body = post(t, s.URL(), streamed)
	require.Contains(t, body, "by rule")
}

func TestGate(t *testing.T) {
	s := modeltest.Start(t)
	gate := modeltest.NewGate()
	s.Default(modeltest.Text("before"), modeltest.At(gate), modeltest.Text("after"))
	done := make(chan string, 1)
	go func() {
		_, body := post(t, s.URL(), streamed)
		done <- body
	}()
	<-gate.Reached()
	require.Equal(t, 1, s.Active())
	gate.Open()
	require.Contains(t, <-done, "after")
}

func TestSplit(t *testing.T) {
	for _, n := range []int{0, 1, 3, 100} {
		pieces := modeltest.Split("héllo 你好", n)
		require.Equal(t, "héllo 你好", strings.Join(pieces, ""))
		require.LessOrEqual(t, len(pieces), max(n, 1))
	}
}

// The program prints its address first, answers, and ends when told.
func TestProgram(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "modelserver")
	out, err := exec.Command("go", "build", "-o", bin, "./cmd/modelserver").CombinedOutput()
	require.NoError(t, err, string(out))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "--chunks", "4")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	url, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	url = strings.TrimSpace(url)
	_, body := post(t, url, streamed)
	require.Equal(t, 6, strings.Count(body, `"choices":`), body)
	_, body = post(t, url, strings.Replace(streamed, "hi", `[tool f {\"x\":1}]`, 1))
	require.Contains(t, body, `{\"x\":1}`)
	status, _ := post(t, url, strings.Replace(streamed, "hi", `[503]`, 1))
	require.Equal(t, 503, status)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
}

func BenchmarkEcho20(b *testing.B) {
	s := modeltest.Start(b)
	s.Record(false)
	s.Default(modeltest.Echo(20))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(client.CloseIdleConnections)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			resp, err := client.Post(s.URL()+"/chat/completions", "application/json", strings.NewReader(streamed))
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "streams/s")
}
