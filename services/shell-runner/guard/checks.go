package guard

import (
	"path"
	"regexp"
	"strings"
)

// checks are the functions that the tables name where a row of a table is not enough. They only add reasons.
var checks = map[string]func(*walker, *command){}

func init() {
	for name, f := range map[string]func(*walker, *command){
		"rm": checkRemove, "chmod": checkMode, "chown": checkOwner, "kill": checkKill, "dd": checkCopyBlocks, "ln": checkLink,
		"mv": checkMove, "cd": checkDirectory, "find": checkFind, "mkdir": checkMake, "variables": checkVariables,
		"source": checkSource, "eval": checkEval, "trap": checkTrap, "alias": checkAlias, "set": checkSet,
		"shell": checkShell, "interpreter": checkInterpreter, "sed": checkSed, "awk": checkAwk, "sql": checkSQL,
		"curl": checkCurl, "network": checkNetwork, "mounts": checkMounts, "shelltext": checkShellText, "chdir": checkChdir,
		"fd": checkFD, "stdin": checkStdin, "jq": checkJQ, "editor": checkEditor, "gitconfig": checkGitConfig, "print": checkPrint,
		"compose": checkMessage, "install": checkInstall, "disk": checkDisk,
	} {
		checks[name] = f
	}
}

func checkRemove(w *walker, c *command) {
	recursive := c.has("-r", "-R", "--recursive", "-d") || anyToken([]string{"--recursive"}, &c.arguments, true)
	if c.name == "rmdir" || c.name == "unlink" || c.name == "shred" || c.name == "srm" || c.name == "wipe" {
		recursive = c.name == "srm" || c.name == "wipe"
	}
	if c.has("--no-preserve-root") {
		w.addWord(critical, "removes-everything", c.at)
	}
	for _, x := range c.operands {
		w.removes(x, recursive)
		if c.name == "shred" {
			if p := w.place(x); p > placeUnknown {
				l, code := p.writeRisk()
				w.addWord(l, code, x)
			}
		}
	}
}

var openMode = regexp.MustCompile(`^[0-7]*[0-7][0-7][2367]$|^[0-7]*[2367][0-7]$`)

func checkMode(w *walker, c *command) {
	if len(c.operands) == 0 {
		return
	}
	// A symbolic mode may begin with a dash, which looks like options: -x, -rwx.
	mode, files := c.operands[0].text, c.operands[1:]
	if anyToken([]string{"--reference"}, &c.arguments, true) {
		mode, files = "", c.operands
	}
	digits := strings.Trim(mode, "01234567") == ""
	switch {
	case digits && len(mode) > 3 && strings.TrimLeft(mode, "0") != "" && len(strings.TrimLeft(mode, "0")) > 3:
		w.addWord(high, "sets-special-bits", c.at)
	case digits && len(mode) >= 3 && strings.IndexByte("2367", mode[len(mode)-1]) >= 0:
		w.addWord(high, "opens-to-everybody", c.at)
	case digits && strings.Trim(mode, "0") == "" && c.has("-R", "--recursive"):
		w.addWord(high, "locks-out", c.at)
	case !digits:
		for _, clause := range strings.Split(mode, ",") {
			i := strings.IndexAny(clause, "+=")
			if i < 0 {
				continue
			}
			who, what := clause[:i], clause[i+1:]
			if strings.Contains(what, "s") {
				w.addWord(high, "sets-special-bits", c.at)
			} else if strings.Contains(what, "w") && (who == "" || strings.ContainsAny(who, "oa")) && (who != "") {
				w.addWord(high, "opens-to-everybody", c.at)
			}
		}
	}
	checkAttributes(w, c, files)
}

func checkOwner(w *walker, c *command) {
	if len(c.operands) > 0 {
		checkAttributes(w, c, c.operands[1:])
	}
}

// checkAttributes judges the files whose mode, owner or flags change.
func checkAttributes(w *walker, c *command, files []word) {
	recursive := c.has("-R", "--recursive")
	for _, x := range files {
		switch p := w.place(x); {
		case p == placeStartup:
			if paths, _ := w.absolute(x.text); len(paths) > 0 && strings.Contains(paths[0], "/.ssh") {
				continue // tightening ~/.ssh is daily work; opening it was found above
			}
			w.addWord(medium, "changes-attributes", x)
		case p > placeStartup:
			w.addWord(high, "changes-system-attributes", x)
		case p == placeUnknown && recursive:
			w.addWord(high, "changes-system-attributes", x)
		}
	}
}

func checkKill(w *walker, c *command) {
	signal := false
	for i, x := range c.raw {
		text := x.text
		switch {
		case text == "--":
			signal = true
			continue
		case i == 0 && strings.HasPrefix(text, "-"):
			if text == "-1" && len(c.raw) == 1 {
				w.addWord(critical, "kills-everything", x)
			}
			if text == "-s" || text == "-n" || text == "--signal" {
				signal = false
			}
			continue
		}
		switch {
		case text == "-1":
			w.addWord(critical, "kills-everything", x)
		case text == "1" && !(i == 1 && (c.raw[0].text == "-s" || c.raw[0].text == "-n")):
			w.addWord(high, "kills-init", x)
		case strings.HasPrefix(text, "-") && signal:
		}
	}
}

func checkCopyBlocks(w *walker, c *command) {
	for _, x := range c.raw {
		key, value, _ := strings.Cut(x.text, "=")
		switch key {
		case "of":
			w.writeTo(x.with(value))
		case "if":
			w.readFrom(x.with(value), false)
		}
	}
}

func checkLink(w *walker, c *command) {
	if len(c.operands) > 1 {
		w.writeTo(c.operands[len(c.operands)-1])
		for _, x := range c.operands[:len(c.operands)-1] {
			if l, _ := w.place(x).writeRisk(); l >= high && w.place(x) == placeOwn {
				w.addWord(high, "touches-butler", x)
			}
		}
	}
}

func checkMove(w *walker, c *command) {
	n := len(c.operands)
	if len(c.valuesOf("-t", "--target-directory")) == 0 {
		n--
	}
	for i := 0; i < n; i++ {
		w.removes(c.operands[i], true)
	}
}

func checkMake(w *walker, c *command) {
	for _, x := range c.operands {
		if l, code := w.place(x).writeRisk(); l > medium {
			w.addWord(l, code, x)
		}
	}
}

func checkInstall(w *walker, c *command) {
	for _, x := range c.operands {
		if p := w.place(x); p > placeUnknown {
			l, code := p.writeRisk()
			w.addWord(l, code, x)
		}
	}
	for _, m := range c.valuesOf("-m", "--mode") {
		if len(strings.TrimLeft(m.text, "0")) > 3 || strings.Contains(m.text, "+s") {
			w.addWord(high, "sets-special-bits", c.at)
		}
	}
}

// checkDisk judges programs that write to the device they are given.
func checkDisk(w *walker, c *command) {
	for _, x := range c.operands {
		if w.place(x) == placeWholeDisk {
			w.addWord(critical, "overwrites-disk", x)
		}
	}
}

func checkDirectory(w *walker, c *command) {
	target := word{text: w.c.home}
	for _, x := range c.operands {
		target = x
	}
	for _, x := range c.raw {
		if x.text == "-" {
			target.text = unknown
		}
	}
	if c.name == "popd" || c.name == "pushd" && len(c.operands) == 0 {
		target.text = unknown
	}
	paths, cut := w.absolute(target.text)
	if len(paths) == 0 || cut || target.glob {
		w.sc.addDir(unknown)
		return
	}
	if len(c.operands) > 1 {
		return
	}
	// It may fail, and then the shell stays where it was; but what follows is meant for the new place.
	for _, p := range paths {
		w.sc.addDir(p)
	}
}

// checkChdir judges programs that work in the folder an option names (tar -C, make -C).
func checkChdir(w *walker, c *command) {
	extracts := c.name != "tar" && c.name != "bsdtar" || c.has("-x", "--extract", "--get")
	for _, x := range c.valuesOf("-C", "--directory", "-d") {
		if p := w.place(x); extracts && p > placeUnknown {
			l, code := p.writeRisk()
			w.addWord(l, code, x)
		}
	}
	if extracts && c.has("-P", "--absolute-names", "--absolute-paths") {
		w.addWord(high, "writes-system", c.at)
	}
}

func checkVariables(w *walker, c *command) {
	for _, x := range c.raw {
		name, _, _ := strings.Cut(x.text, "=")
		switch {
		case hasSubstitution(x.text):
			w.addWord(high, "computed-code", x)
		case c.name == "unset" && influence(name) > low:
			w.addWord(medium, "changes-environment", x)
		}
		if isName(name) {
			w.sc.forget(name)
			if influence(name) == high && c.name != "unset" {
				w.addWord(high, "runs-through-environment", x)
			}
		}
	}
}

func checkPrint(w *walker, c *command) {
	for i, x := range c.raw {
		if x.text == "-v" && i+1 < len(c.raw) {
			target := c.raw[i+1]
			name, _, _ := strings.Cut(target.text, "[")
			if hasSubstitution(target.text) || !target.known() {
				w.addWord(high, "computed-code", target)
			}
			if l := influence(name); l > low {
				w.addWord(l, "changes-environment", target)
			}
			w.sc.forget(name)
		}
	}
}

func checkSet(w *walker, c *command) {
	for i, x := range c.raw {
		if x.text == "--" || !strings.HasPrefix(x.text, "-") && !strings.HasPrefix(x.text, "+") {
			rest := c.raw[i:]
			if x.text == "--" {
				rest = c.raw[i+1:]
			}
			w.sc.positional = []string{}
			for _, r := range rest {
				if r.loose || r.glob {
					w.sc.positional = nil
					return
				}
				w.sc.positional = append(w.sc.positional, r.text)
			}
			return
		}
		if (x.text == "-o" || x.text == "+o") && i+1 < len(c.raw) {
			return
		}
	}
}

func checkSource(w *walker, c *command) {
	if len(c.operands) == 0 {
		return
	}
	if x := c.operands[0]; x.text == "/dev/stdin" {
		w.stdinCode(c, true)
	} else {
		w.script(x)
	}
	w.sc.forgetAll()
}

func checkEval(w *walker, c *command) {
	if len(c.raw) == 0 {
		return
	}
	x := join(c.raw)
	if x.substs && !x.known() || x.loose || !x.known() {
		w.addWord(high, "computed-code", x)
	}
	w.inner(x.text, x, w.sc)
	w.sc.forgetAll()
}

func checkTrap(w *walker, c *command) {
	if len(c.operands) > 1 && c.operands[0].text != "-" {
		w.code(c.operands[0])
	}
}

func checkAlias(w *walker, c *command) {
	for _, x := range c.operands {
		name, text, ok := strings.Cut(x.text, "=")
		if !ok {
			continue
		}
		if !x.known() {
			w.addWord(high, "computed-code", x)
			continue
		}
		first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
		if (w.c.g.tables.programs[name] != nil || builtins[name]) && first != name {
			w.addWord(high, "shadows-command", x)
		}
		w.sub(x.with(text))
		if len(w.sc.aliases) < 500 {
			w.sc.aliases[name] = text
		}
	}
}

// checkShellText judges options and operands that a shell reads: complete -C, git bisect run, ssh commands of tools.
func checkShellText(w *walker, c *command) {
	for _, x := range c.valuesOf("-C", "-x", "-c", "--command", "--exec", "-e") {
		w.code(x)
	}
}

func checkNetwork(w *walker, c *command) {
	for _, x := range c.words[1:] {
		if x.substs {
			w.addWord(medium, "sends-computed", x)
		}
	}
}

// checkMessage is for programs whose operands are code in no language the guard reads.
func checkMessage(w *walker, c *command) {
	for _, x := range c.raw {
		if badTokens(x.text) {
			w.addWord(high, "dangerous-code", x)
		}
	}
}

// harmlessStart is where an editor or pager begins: at a line, at the end, at a match.
var harmlessStart = regexp.MustCompile(`^\+([0-9]*|F|G|g|/[^|!]*)$`)

func checkEditor(w *walker, c *command) {
	for _, x := range c.raw {
		if strings.HasPrefix(x.text, "+") && !harmlessStart.MatchString(x.text) {
			w.addWord(medium, "inline-code", x)
			if strings.Contains(x.text, "!") || badTokens(x.text) {
				w.addWord(high, "dangerous-code", x)
			}
		}
	}
	for _, x := range c.valuesOf("-c", "--cmd", "--eval", "-eval", "-S", "-s", "-e", "--execute", "-f") {
		w.addWord(medium, "inline-code", x)
		if strings.Contains(x.text, "!") || badTokens(x.text) {
			w.addWord(high, "dangerous-code", x)
		}
	}
	if w.sc.stdin.kind == fromText && (strings.Contains(w.sc.stdin.text, "!") || badTokens(w.sc.stdin.text)) {
		w.addWord(high, "dangerous-code", c.at)
	}
	for _, x := range c.operands {
		if p := w.place(x); p > placeUnknown && p != placeStartup && c.name != "less" && c.name != "more" {
			w.addWord(medium, "edits-system", x)
		}
	}
}

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

// checkMounts judges what a container gets of the host.
func checkMounts(w *walker, c *command) {
	for _, v := range c.valuesOf("-v", "--volume", "--mount") {
		source := v.text
		if strings.Contains(source, "source=") || strings.Contains(source, "src=") {
			for _, part := range strings.Split(source, ",") {
				if _, s, ok := strings.Cut(part, "="); ok && (strings.HasPrefix(part, "source=") || strings.HasPrefix(part, "src=")) {
					source = s
				}
			}
		} else {
			source, _, _ = strings.Cut(source, ":")
		}
		if source == "" || !strings.ContainsAny(source, "/.~") && source != unknown {
			continue
		}
		paths, cut := w.absolute(source)
		for _, p := range paths {
			switch pl := w.placeOf(p, cut); {
			case p == "/", pl > placeUnknown, p == w.c.home, strings.HasSuffix(p, ".sock"), p == "/home", secretPath(p):
				w.addWord(high, "container-reaches-host", v)
			}
		}
	}
}

func checkFD(w *walker, c *command) {
	for i, x := range c.words {
		switch x.text {
		case "-x", "-X", "--exec", "--exec-batch":
			rest := append([]word(nil), c.words[i+1:]...)
			rest = append(rest, word{text: unknown, start: c.at.start, end: c.at.end})
			if len(rest) > 1 {
				w.exec(rest)
			}
			return
		}
	}
}

// findTests are the primaries of find that only test or print; true when one argument follows.
var findTests = map[string]bool{}

func init() {
	for _, name := range strings.Fields(`-amin -anewer -atime -cmin -cnewer -context -ctime -fstype -gid -group -ilname -iname
		-inum -ipath -iregex -iwholename -links -lname -maxdepth -mindepth -mmin -mtime -name -newer -path -perm -printf -regex
		-regextype -samefile -size -type -uid -used -user -wholename -xtype -newermt -newerat -newerct -newermm -newerBt -D -files0-from`) {
		findTests[name] = true
	}
	for _, name := range strings.Fields(`-a -and -d -daystart -depth -empty -executable -false -follow -ignore_readdir_race -ls
		-mount -nogroup -noignore_readdir_race -noleaf -nouser -not -nowarn -o -or -print -print0 -prune -quit -readable -true
		-warn -writable -xdev -H -L -P -O1 -O2 -O3 -E -X -s -x`) {
		findTests[name] = false
	}
}

func checkFind(w *walker, c *command) {
	args := c.words[1:]
	roots := []word{}
	begun, secret := false, false // secret: it looks for files whose names say that they are
	for i := 0; i < len(args); i++ {
		x := args[i]
		text := x.text
		switch {
		case !begun && !strings.HasPrefix(text, "-") && text != "!" && text != "(" && text != "," && text != ")":
			roots = append(roots, x)
			continue
		case text == "!" || text == "(" || text == ")" || text == ",":
			begun = true
			continue
		}
		if takes, ok := findTests[text]; ok {
			begun = begun || len(text) > 2
			if takes {
				i++
				secret = secret || i < len(args) && strings.HasSuffix(text, "name") && secretPath(args[i].text)
			}
			continue
		}
		begun = true
		if secret && strings.HasPrefix(text, "-exec") {
			w.addWord(medium, "reads-secret", x)
		}
		switch text {
		case "-delete":
			w.addWord(medium, "removes-found", x)
			w.removesFound(roots)
		case "-exec", "-execdir", "-ok", "-okdir":
			end := i + 1
			for end < len(args) && args[end].text != ";" && !(args[end].text == "+" && args[end-1].text == "{}") {
				end++
			}
			inner := append([]word(nil), args[i+1:end]...)
			if len(inner) > 0 && strings.Contains(inner[0].text, "{}") {
				w.addWord(high, "computed-command", inner[0])
			} else if len(inner) > 0 {
				name := path.Base(inner[0].text)
				for j := range inner {
					inner[j].text = strings.ReplaceAll(inner[j].text, "{}", unknown)
				}
				w.exec(inner)
				if name == "rm" || name == "unlink" || name == "shred" {
					w.addWord(high, "removes-found", x)
				}
			}
			if strings.HasPrefix(text, "-ok") {
				w.addWord(medium, "removes-found", x)
			}
			i = end
		case "-fprint", "-fprint0", "-fls", "-fprintf":
			if i+1 < len(args) {
				w.writeTo(args[i+1])
			}
			w.addWord(medium, "writes-file", x)
			if i++; text == "-fprintf" {
				i++
			}
		default:
			w.addWord(medium, "unlisted-use", x)
		}
	}
}

// removesFound judges find -delete by where it begins: in the system or the home as a whole it is as bad as rm -r.
func (w *walker) removesFound(roots []word) {
	for _, r := range roots {
		paths, cut := w.absolute(r.text)
		if cut && len(paths) == 0 {
			w.addWord(high, "removes-unknown", r)
		}
		for _, p := range paths {
			switch w.placeOf(p, r.glob) {
			case placeTemp, placeOpen, placeSink:
				if p == w.c.home {
					w.addWord(high, "removes-everything", r)
				}
			default:
				w.addWord(high, "removes-system", r)
			}
		}
	}
}
