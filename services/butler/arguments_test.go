package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWrongUseSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := newHome(t, "BUTLER_SERVER=http://127.0.0.1:1", "BUTLER_TOKEN=token")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"users", "add"}, "NAME is missing: butler users add NAME [flags]"},
		{[]string{"users", "role"}, "USER and ADMIN|MEMBER are missing"},
		{[]string{"users", "role", "bob"}, "ADMIN|MEMBER is missing"},
		{[]string{"sessions", "delete"}, "ID... is missing"},
		{[]string{"approvals", "show", "K7QF", "M2PX"}, "there is an argument too many, \"M2PX\""},
		{[]string{"users", "list", "bob"}, "there is an argument too many, \"bob\""},
		{[]string{"users", "nix"}, "unknown command"},
		{[]string{"help", "nix"}, "there is no command `butler nix`"},
		{[]string{"help", "users", "nix"}, "there is no command `butler users nix`"},
		{[]string{"approvals", "list", "--status", "foo"}, "refused or all, not \"foo\""},
		{[]string{"users", "add", "dave"}, "standard input ended: a password, for “Password for dave”, was expected there"},
	} {
		r := h.run("", c.args...)
		assert.Equal(t, exitUsage, r.code, "%q", c.args)
		assert.Contains(t, r.err, c.says, "%q", c.args)
	}
	assert.Contains(t, h.ok("", "help", "users", "add"), "butler users add NAME")
	assert.Contains(t, h.ok("", "help"), "Exit codes")
	assert.Contains(t, h.ok("", "help", "help"), "butler help")
}

func TestEmptyListsSaySo(t *testing.T) {
	t.Parallel()
	nothing := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }
	h := fakeGateway(t, map[string]http.HandlerFunc{
		"/api/approvals": nothing, "/api/chat/threads": nothing, "/api/users": nothing, "/api/tokens": nothing, "/api/audit": nothing,
	})
	for _, list := range []string{"approvals", "sessions", "users", "tokens", "audit"} {
		assert.Regexp(t, `(?m)^(There are no|No|Nothing) .*\n$`, h.ok("", list, "list"), list)
	}
	h.more = append(h.more, "LC_ALL=zh_CN.UTF-8")
	assert.Equal(t, "没有等待决定的请求。\n", h.ok("", "approvals", "list"))
}

func TestLanguageOfTheLocale(t *testing.T) {
	t.Parallel()
	for locale, want := range map[string]string{
		"zh_CN.UTF-8": "zh", "zh": "zh", "zh.UTF-8": "zh", "zh-Hans": "zh", "en_US": "en", "C.UTF-8": "", "zhx": "", "": "",
	} {
		assert.Equal(t, want, newApp(nil, nil, nil, []string{"LANG=" + locale}).language(), locale)
	}
}
