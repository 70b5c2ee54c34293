// Package web is Butler's chat page: plain HTML, CSS and ECMAScript modules, embedded, served as they are written.
// Nothing is built, and nothing is loaded from another host.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

// ContentSecurityPolicy is what the page is allowed to do: its own files and its own server, nothing inline.
const ContentSecurityPolicy = "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; " +
	"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// contentTypes are given here rather than by package mime, which asks the machine and so differs between machines.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
	".json": "application/json",
}

// minGzip is the size in bytes from which a compressed copy is kept.
const minGzip = 512

// page is one file, ready to be sent.
type page struct {
	contentType string
	etag        string
	plain       []byte
	zipped      []byte // nil when compression does not pay
}

// Handler serves the page at "/" and its files beside it, and 404 for everything else. It takes GET and HEAD; other
// methods get 405. Every answer carries the security headers and, for files, an ETag with "no-cache": browsers keep a
// file and ask whether it is still the same, so a new version of Butler shows at once. Handler reads and compresses the
// embedded files once; it panics only if the embedded tree cannot be read, which a build cannot produce.
func Handler() http.Handler {
	pages, err := load(static)
	if err != nil {
		panic("web: embedded files: " + err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", ContentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "This address only answers GET and HEAD.", http.StatusMethodNotAllowed)
			return
		}
		p, ok := pages[r.URL.Path]
		if !ok {
			h.Set("Cache-Control", "no-store")
			http.Error(w, "There is nothing at this address. The chat page is at /.", http.StatusNotFound)
			return
		}
		h.Set("Content-Type", p.contentType)
		h.Set("Cache-Control", "no-cache")
		h.Set("Vary", "Accept-Encoding")
		body, etag := p.plain, p.etag
		if p.zipped != nil && acceptsGzip(r.Header.Get("Accept-Encoding")) {
			h.Set("Content-Encoding", "gzip")
			body, etag = p.zipped, p.etag+"-gz"
		}
		h.Set("ETag", `"`+etag+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	})
}

// load reads the tree "static" into a map from URL path to page; index.html is at "/" only.
func load(tree fs.FS) (map[string]page, error) {
	pages := make(map[string]page)
	err := fs.WalkDir(tree, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		contentType, ok := contentTypes[path.Ext(name)]
		if !ok {
			contentType = "application/octet-stream"
		}
		plain, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		zipped, err := compress(plain)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(plain)
		url := strings.TrimPrefix(name, "static")
		if url == "/index.html" {
			url = "/"
		}
		pages[url] = page{contentType: contentType, etag: hex.EncodeToString(sum[:12]), plain: plain, zipped: zipped}
		return nil
	})
	return pages, err
}

// compress returns the gzip form, or nil when the file is small or does not shrink.
func compress(plain []byte) ([]byte, error) {
	if len(plain) < minGzip {
		return nil, nil
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() >= len(plain) {
		return nil, nil
	}
	return b.Bytes(), nil
}

// acceptsGzip reads an Accept-Encoding header: gzip, named, and not refused with a quality of zero.
func acceptsGzip(header string) bool {
	for _, part := range strings.Split(header, ",") {
		coding, params, _ := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			continue
		}
		q := strings.TrimLeft(strings.ReplaceAll(strings.ToLower(params), " ", ""), ";")
		return !strings.HasPrefix(q, "q=0") || strings.Trim(strings.TrimPrefix(q, "q=0"), ".0") != ""
	}
	return false
}
