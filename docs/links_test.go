// Package docs holds the documentation together: links that lead somewhere, commands that exist, and two READMEs that say
// the same. It has tests only.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pages gives every page with its path from the repository's root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../*.md", "*.md", "*/*.md"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			out[path] = string(data)
		}
	}
	require.Contains(t, out, "../README.md")
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	mark    = regexp.MustCompile(`<a id="([^"]+)">`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors gives what can stand behind a # of a link to the page, as GitHub makes it of headings.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	page = fence.ReplaceAllString(page, "")
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		out[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	for _, m := range mark.FindAllStringSubmatch(page, -1) {
		out[m[1]] = true
	}
	return out
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for path, page := range all {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(m[1], "#")
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
				_, err := os.Stat(file)
				require.NoError(t, err, "%s links to %s", path, m[1])
			}
			if anchor != "" {
				require.True(t, anchors(all[file])[anchor], "%s links to %s: no such heading", path, m[1])
			}
		}
	}
}

var makeTarget = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)")

func TestMakeTargetsExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	for path, page := range pages(t) {
		for _, m := range makeTarget.FindAllStringSubmatch(page, -1) {
			require.Contains(t, string(makefile), "\n"+m[1]+":", "%s names make %s", path, m[1])
		}
	}
}

// Every route of the gateway is on the page of the HTTP API, and every route of the page is the gateway's.
func TestRoutesAreDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../services/gateway/routes.go")
	require.NoError(t, err)
	served := map[string]bool{"POST /config/reload": true} // of the ops address
	for _, m := range regexp.MustCompile(`"(GET|POST|PATCH|DELETE)(?:", "| )(/[^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		served[m[1]+" "+m[2]] = true
	}
	documented := map[string]bool{}
	page := pages(t)["reference/http-api.md"] + pages(t)["reference/websocket.md"]
	for _, m := range regexp.MustCompile("`(GET|POST|PATCH|DELETE) (/[^`?]*)").FindAllStringSubmatch(page, -1) {
		documented[m[1]+" "+m[2]] = true
	}
	require.Equal(t, served, documented)
}

// The two READMEs have the same parts, commands and links.
func TestTheReadmesSayTheSame(t *testing.T) {
	t.Parallel()
	all := pages(t)
	shape := func(page string) (level []string, code []string, links map[string]bool) {
		for _, m := range fence.FindAllString(page, -1) {
			code = append(code, regexp.MustCompile(`Good morning!|早上好！`).ReplaceAllString(m, "…"))
		}
		for _, m := range heading.FindAllString(fence.ReplaceAllString(page, ""), -1) {
			level = append(level, strings.SplitN(m, " ", 2)[0])
		}
		links = map[string]bool{}
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if !strings.HasPrefix(m[1], "README") {
				links[m[1]] = true
			}
		}
		return level, code, links
	}
	level, code, links := shape(all["../README.md"])
	zhLevel, zhCode, zhLinks := shape(all["../README.zh-CN.md"])
	require.Equal(t, level, zhLevel)
	require.Equal(t, code, zhCode)
	require.Equal(t, links, zhLinks)
}
