package redact

import (
	"bytes"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ordinary is what terminals show: builds, listings, logs, JSON, colours, Chinese.
func ordinary() []byte {
	lines := "-rw-r--r-- 1 ops ops  4096 Dec  1 07:10 main.go\r\n" +
		"2026-12-01T08:00:00.123Z INFO gateway: request done method=GET path=/api/chat/threads/12 status=200 took=3.2ms user=ann\r\n" +
		"\x1b[32mok\x1b[0m  \tgithub.com/butlerhub/butler/pkg/journal\t12.345s\r\n" +
		`{"level":"info","ts":1733040000.123,"caller":"server/server.go:123","msg":"started","addr":"0.0.0.0:8080","ids":[1,2,3]}` + "\r\n" +
		"commit 3f786850e387550fdab836ed7e6dc881de23001b\r\nAuthor: Ann <ann@example.org>\r\n\r\n    Fix the token refresh\r\n" +
		"服务已启动，监听端口 8080，等待连接。\r\n" +
		"func (s *Server) Handle(ctx context.Context, req *http.Request) (resp *http.Response, err error) {\r\n" +
		"tcp        0      0 127.0.0.1:5432          0.0.0.0:*               LISTEN      812/postgres\r\n" +
		"Get:5 http://deb.debian.org/debian bookworm/main amd64 passwd amd64 1:4.13+dfsg1-1 [972 kB]\r\n" +
		"   Compiling serde v1.0.200 (/home/ann/.cargo/registry/src/index.crates.io-6f17d22bba15001f/serde-1.0.200)\r\n"
	return bytes.Repeat([]byte(lines), 1<<20/len(lines))
}

// dense is the corpus of secrets, one after another.
func dense(b *testing.B) []byte {
	var one bytes.Buffer
	for _, e := range everything(b) {
		if e.secret {
			one.WriteString(e.text + "\n\n$ \n")
		}
	}
	return bytes.Repeat(one.Bytes(), 1<<20/one.Len())
}

func BenchmarkStream(b *testing.B) {
	known := &Redactor{}
	for i := range 50 {
		known.Add("env", strings.Repeat(string(rune('a'+i%26)), 3)+"-value-of-a-variable-"+string(rune('A'+i)))
	}
	for _, text := range []struct {
		name string
		data []byte
	}{
		{"ordinary", ordinary()}, {"dense", dense(b)}, {"base64", bytes.Repeat([]byte(strings.Repeat("aB3+", 19)+"\n"), 1<<20/77)},
		{"one-line", bytes.Repeat([]byte(`{"id":17,"name":"ann","at":"2026-12-01"},`), 1<<20/41)},
		{"separators", bytes.Repeat([]byte("a=b:c,d;e=f "), 1<<20/12)}, {"keywords", bytes.Repeat([]byte("password for token key= secret: mysql -p "), 1<<20/41)},
		{"hostile", []byte(hostile(1 << 20))},
		{"colours", bytes.Repeat([]byte("\x1b[31ma\x1b[0mb "), 1<<20/12)},
	} {
		b.Run(text.name, func(b *testing.B) { stream(b, &Redactor{}, text.data) })
		if text.name == "ordinary" || text.name == "dense" {
			b.Run(text.name+"-known", func(b *testing.B) { stream(b, known, text.data) })
		}
	}
	b.Run("copy", func(b *testing.B) {
		data := ordinary()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			_, _ = io.Copy(struct{ io.Writer }{io.Discard}, bytes.NewReader(bytes.Clone(data)))
		}
	})
}

func stream(b *testing.B, r *Redactor, data []byte) {
	b.SetBytes(int64(len(data)))
	before := cpu(b)
	defer func() { // of a machine that others use too
		b.ReportMetric(float64(len(data))*float64(b.N)/1e6/(cpu(b)-before).Seconds(), "MB/cpu-s")
	}()
	for b.Loop() {
		s := r.Stream(io.Discard)
		for rest := data; len(rest) > 0; { // as a PTY is read
			n := min(len(rest), 4096)
			_, _ = s.Write(rest[:n])
			rest = rest[n:]
		}
		_ = s.Close()
	}
}

// cpu is what the process has used of it.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// hostile are texts that could be read again and again.
func hostile(size int) string {
	var out strings.Builder
	for out.Len() < size {
		for _, unit := range []string{"sk-", "TOKEN=", "a://", "a:", "eyJ.", "password for ", "echo \"", "mysql -p", "'", "\\\"", "%3D",
			"密码", "<password>", "-----BEGIN ", "Cookie: a=", "name: password ", "curl -u ", "$6$", "key", "password:\n", "A/", "token ("} {
			out.WriteString(strings.Repeat(unit, 4000/len(unit)))
			out.WriteByte('\n')
			out.WriteString(strings.Repeat(unit, 20_000/len(unit)))
			out.WriteByte('\n')
		}
	}
	return out.String()
}
