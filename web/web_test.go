package web

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func get(t *testing.T, method, target string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}

func TestHandler(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, target string
		status         int
		contentType    string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/?after=1", 200, "text/html; charset=utf-8"},
		{"GET", "/js/main.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/css/base.css", 200, "text/css; charset=utf-8"},
		{"GET", "/favicon.svg", 200, "image/svg+xml"},
		{"GET", "/index.html", 404, "text/plain; charset=utf-8"},
		{"GET", "/nothing", 404, "text/plain; charset=utf-8"},
		{"GET", "/js/", 404, "text/plain; charset=utf-8"},
		{"GET", "/js/../web.go", 404, "text/plain; charset=utf-8"},
		{"GET", "/static/js/main.js", 404, "text/plain; charset=utf-8"},
		{"POST", "/", 405, "text/plain; charset=utf-8"},
		{"DELETE", "/js/main.js", 405, "text/plain; charset=utf-8"},
	} {
		t.Run(c.method+" "+c.target, func(t *testing.T) {
			t.Parallel()
			res := get(t, c.method, c.target)
			require.Equal(t, c.status, res.StatusCode)
			require.Equal(t, c.contentType, res.Header.Get("Content-Type"))
			require.Equal(t, ContentSecurityPolicy, res.Header.Get("Content-Security-Policy"))
			require.Equal(t, "nosniff", res.Header.Get("X-Content-Type-Options"))
			require.Equal(t, "no-referrer", res.Header.Get("Referrer-Policy"))
			if c.status == http.StatusMethodNotAllowed {
				require.Equal(t, "GET, HEAD", res.Header.Get("Allow"))
			}
			if c.method == http.MethodHead {
				require.Empty(t, body(t, res.Body))
			}
		})
	}
}

func TestHandlerSaysWhenAFileIsTheSame(t *testing.T) {
	t.Parallel()
	first := get(t, "GET", "/js/main.js")
	tag := first.Header.Get("ETag")
	require.NotEmpty(t, tag)
	require.Equal(t, "no-cache", first.Header.Get("Cache-Control"))
	again := get(t, "GET", "/js/main.js", "If-None-Match", tag)
	require.Equal(t, http.StatusNotModified, again.StatusCode)
	require.Empty(t, body(t, again.Body))
	other := get(t, "GET", "/js/main.js", "If-None-Match", `"something else"`)
	require.Equal(t, http.StatusOK, other.StatusCode)
}

func TestHandlerCompresses(t *testing.T) {
	t.Parallel()
	plain := get(t, "GET", "/js/main.js")
	require.Empty(t, plain.Header.Get("Content-Encoding"))
	zipped := get(t, "GET", "/js/main.js", "Accept-Encoding", "br, gzip;q=0.8")
	require.Equal(t, "gzip", zipped.Header.Get("Content-Encoding"))
	require.Equal(t, "Accept-Encoding", zipped.Header.Get("Vary"))
	require.NotEqual(t, plain.Header.Get("ETag"), zipped.Header.Get("ETag"))
	z, err := gzip.NewReader(zipped.Body)
	require.NoError(t, err)
	require.Equal(t, body(t, plain.Body), body(t, z))
}

func TestAcceptsGzip(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "br, gzip": true, "gzip;q=1.0": true, "gzip; q=0.1": true, "gzip;q=0": false,
		"gzip;q=0.00": false, "br": false, "*": false, "x-gzip": false,
	} {
		require.Equal(t, want, acceptsGzip(header), header)
	}
}

// What the policy forbids would fail only in the browser: inline code and styles, and anything from another host.
func TestPageKeepsItsPolicy(t *testing.T) {
	t.Parallel()
	page := body(t, get(t, "GET", "/").Body)
	require.NotRegexp(t, regexp.MustCompile(`(?i)<style|<script>|<script [^>]*>[^<]|\sstyle=|\son[a-z]+=|javascript:`), page)
	outside := regexp.MustCompile(`(?i)(?:src|href|url\(|import|from)\s*[=(]?\s*["']?(?:https?:)?//`)
	markup := regexp.MustCompile(`\.(?:innerHTML|outerHTML|insertAdjacentHTML)|document\.write|\beval\(|new Function`)
	require.NoError(t, fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(static, name)
		require.NoError(t, err)
		require.NotRegexp(t, outside, string(b), name)
		require.NotRegexp(t, markup, string(b), name)
		return nil
	}))
}

// Every file that the page or a module names is served, every module is named in the page, and nothing else is embedded.
func TestFilesFitTogether(t *testing.T) {
	t.Parallel()
	pages, err := load(static)
	require.NoError(t, err)
	named := map[string]bool{"/": true}
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"]*)"`).FindAllStringSubmatch(string(pages["/"].plain), -1) {
		named[m[1]] = true
	}
	for url, p := range pages {
		for _, m := range regexp.MustCompile(`from '(\./[^']+)'`).FindAllStringSubmatch(string(p.plain), -1) {
			target := path.Join(path.Dir(url), m[1])
			require.Contains(t, pages, target, "%s imports it", url)
			require.True(t, named[target], "index.html should preload %s", target)
		}
	}
	for url := range named {
		require.Contains(t, pages, url, "index.html names it")
	}
	for url := range pages {
		require.True(t, named[url], "%s is embedded, but nothing uses it", url)
		require.False(t, strings.Contains(url, "/."), url)
	}
}
