package guard

import (
	"slices"
	"strings"
)

func checkGitConfig(w *walker, c *command) {
	for _, o := range c.options {
		// Before the subcommand, and for clone also after it, -c sets a setting; elsewhere it is another option.
		global := len(c.operands) == 0 || c.operands[0].text == "clone" || o.at < indexOf(c.raw, c.operands[0])
		if global && o.has && (o.name == "-c" || o.name == "--config" || o.name == "--config-env") {
			if !harmlessGitKey(strings.ToLower(o.value.text)) {
				w.addWord(high, "runs-option", o.value)
			}
		}
	}
	w.gitElsewhere(c)
	if len(c.operands) > 0 && c.operands[0].text == "config" {
		ops := c.operands[1:]
		if len(ops) > 0 && (ops[0].text == "set" || ops[0].text == "--add") {
			ops = ops[1:]
		}
		if len(ops) > 1 && (!harmlessGitKey(strings.ToLower(ops[0].text)) || strings.HasPrefix(ops[1].text, "!")) {
			w.addWord(high, "runs-option", ops[0])
		}
	}
	if len(c.operands) > 1 && c.operands[0].text == "push" {
		for _, x := range c.operands[1:] {
			if strings.Contains(x.text, "://") || isRemote(x.text) && strings.Contains(x.text, "@") || strings.HasPrefix(x.text, "ext::") {
				w.addWord(high, "sends-elsewhere", x)
			}
		}
	}
	if len(c.operands) > 2 && (c.operands[0].text == "bisect" && c.operands[1].text == "run") {
		for i, x := range c.words {
			if x.text == "run" && i+1 < len(c.words) {
				w.exec(c.words[i+1:])
				break
			}
		}
	}
	if len(c.operands) > 2 && c.operands[0].text == "submodule" && c.operands[1].text == "foreach" {
		w.code(join(c.operands[2:]))
	}
	for _, x := range c.operands {
		if strings.HasPrefix(x.text, "ext::") {
			w.addWord(high, "runs-option", x)
		}
	}
}

// gitElsewhere judges which repository git works in, and which one it asks. The settings of a repository may name programs
// (core.fsmonitor, core.pager, aliases, hooks), so one that somebody else filled runs what they like.
func (w *walker) gitElsewhere(c *command) {
	if w.far {
		return
	}
	for _, name := range []string{"GIT_DIR", "GIT_WORK_TREE"} { // of the session
		if v, ok := w.sc.lookup(name); ok && len(v) > 0 && v[0] != "" {
			w.addWord(medium, "points-elsewhere", c.at)
		}
	}
	first := len(c.raw)
	if len(c.operands) > 0 {
		first = indexOf(c.raw, c.operands[0])
	}
	for _, o := range c.options {
		switch {
		case o.at > first || !o.has:
		case o.name == "-C" && w.outside(o.value), o.name == "--git-dir", o.name == "--work-tree":
			w.addWord(medium, "points-elsewhere", o.value)
		}
	}
	w.strayed(c)
	if len(c.operands) > 0 && c.operands[0].text == "checkout" && slices.ContainsFunc(c.raw, func(x word) bool { return x.text == "--" }) {
		w.addWord(medium, "loses-work", c.at) // what follows are files
	}
	if len(c.operands) > 1 && c.operands[0].text == "init" && w.outside(c.operands[1]) {
		w.addWord(medium, "points-elsewhere", c.operands[1])
	}
	if len(c.operands) < 2 || !asksRemote[c.operands[0].text] {
		return
	}
	for i, x := range c.operands[1:] {
		// The repository, or an address; a computed branch is as usual.
		if leaves(x) && (i == 0 || strings.ContainsAny(x.text, ":/")) {
			w.addWord(medium, "sends-computed", x)
		}
		folder := strings.HasPrefix(x.text, "/") || strings.HasPrefix(x.text, "../") || strings.HasPrefix(x.text, "file://")
		if i == 0 && folder && w.outside(x) {
			w.addWord(medium, "points-elsewhere", x)
		}
	}
	for _, o := range c.options {
		if o.has && leaves(o.value) {
			w.addWord(medium, "sends-computed", o.value)
		}
	}
}

// asksRemote are subcommands that speak with another host.
var asksRemote = set(`fetch ls-remote clone pull push remote archive submodule request-pull`)

func indexOf(words []word, x word) int {
	for i, y := range words {
		if y.start == x.start && y.text == x.text {
			return i
		}
	}
	return len(words)
}

// harmlessGitKey names the settings of git that only name people, colours and habits of merging.
func harmlessGitKey(key string) bool {
	key, _, _ = strings.Cut(key, "=")
	if strings.HasPrefix(key, "color.") || strings.HasPrefix(key, "user.") || strings.HasPrefix(key, "advice.") {
		return true
	}
	return set(`core.quotepath core.autocrlf core.eol core.filemode core.ignorecase core.abbrev core.bare init.defaultbranch
		pull.rebase pull.ff push.default push.autosetupremote merge.conflictstyle merge.ff diff.algorithm diff.colormoved
		fetch.prune rebase.autostash rebase.autosquash log.date log.decorate status.short branch.sort tag.sort rerere.enabled
		commit.gpgsign tag.gpgsign gc.auto http.postbuffer safe.directory`)[key]
}
