package guard

import (
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
		"tokens": checkTokens, "install": checkInstall, "disk": checkDisk,
		"runs": checkRuns, "second": checkSecond, "sends": checkSends, "elsewhere": checkElsewhere, "netcat": checkNetcat,
		"mongo": checkMongo, "ansible": checkAnsible, "address": checkAddress, "modules": checkModules, "input": checkInput,
		"image": checkImage, "ps": checkProcesses, "formats": checkFormats, "search": checkSearch,
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
	targets := c.raw
	switch {
	case len(targets) == 0:
		return
	case targets[0].text == "-s" || targets[0].text == "-n" || targets[0].text == "--signal":
		targets = targets[min(2, len(targets)):]
	case strings.HasPrefix(targets[0].text, "-") && len(targets) > 1:
		targets = targets[1:] // the signal: -1 before a process is SIGHUP
	}
	for _, x := range targets {
		switch x.text {
		case "-1":
			w.addWord(critical, "kills-everything", x)
		case "1":
			w.addWord(high, "kills-init", x)
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
			switch l := influence(name); {
			case c.name == "unset" || c.name == "test" || c.name == "[":
			case l == high:
				w.addWord(high, "runs-through-environment", x)
			case l == medium && !strings.Contains(x.text, "="): // with a value, assign judges it
				w.addWord(medium, "changes-environment", x)
			}
		}
	}
	if (c.name == "read" || c.name == "mapfile" || c.name == "readarray") && w.sc.stdin.kind == fromText && hidesCode(w.sc.stdin.text) {
		w.addWord(high, "computed-code", c.at)
	}
}

// hiddenCode finds a substitution in an index, a[$(cmd)]: wherever the shell takes such a text for a number or for the
// name of a variable, it runs the command.
var hiddenCode = regexp.MustCompile("[A-Za-z0-9_]\\[[^]]*(\\$\\(|`)")

func hidesCode(s string) bool { return hiddenCode.MatchString(s) }

// checkSecond judges filters whose second operand is written (uniq, xxd).
func checkSecond(w *walker, c *command) {
	if len(c.operands) > 1 {
		w.writeTo(c.operands[1])
	}
}

func checkPrint(w *walker, c *command) {
	for i, x := range c.raw {
		escapes := strings.Contains(x.text, `\`) && (c.name == "printf" || c.has("-e"))
		if terminalOrder.MatchString(x.text) || escapes && terminalOrder.MatchString(ansiC(x.text)) {
			w.addWord(medium, "control-character", x)
		}
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

// checkSearch judges searches through all of a home: what they find may be in a file of keys.
func checkSearch(w *walker, c *command) {
	deep := c.has("-r", "-R", "--recursive", "--dereference-recursive") || c.name == "rg" && c.has("--hidden", "-.", "-uu", "-uuu")
	for _, x := range c.operands[min(1, len(c.operands)):] {
		paths, cut := w.absolute(x.text)
		for _, p := range paths {
			if deep && !cut && (p == w.c.home || p == "/root" || p == "/home" || p == "/") {
				w.addWord(medium, "reads-secret", x)
			}
		}
	}
}

// terminalOrder finds what a terminal obeys instead of showing: answers that it types itself, titles, the clipboard. Colours
// and moves of the cursor only show.
var terminalOrder = regexp.MustCompile(`\x1b([\]PX^_c]|\[[0-9;?>=]*[cnqt])`)

// checkProcesses finds ps e, which shows the environment of programs.
func checkProcesses(w *walker, c *command) {
	for i, x := range c.raw {
		if !isLetters(x.text) || !strings.Contains(x.text, "e") {
			continue
		}
		if i > 0 {
			before := c.raw[i-1].text
			if before == "--sort" || before != "" && strings.ContainsAny(before[len(before)-1:], "opOCuUtgGNskq") {
				continue // the value of the option before
			}
		}
		w.addWord(medium, "shows-secrets", x)
	}
}

// checkFormats judges the formats of tmux, which may run a command: #(…).
func checkFormats(w *walker, c *command) {
	for _, x := range c.raw {
		if strings.Contains(x.text, "#(") {
			w.addWord(high, "escapes-session", x)
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
		if !x.known() {
			w.addWord(high, "computed-code", x)
			continue
		}
		if !ok {
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
	for _, x := range c.valuesOf("-W") { // the words are expanded
		if hasSubstitution(x.text) || !x.known() {
			w.addWord(high, "computed-code", x)
		}
	}
}

// checkTokens is for programs whose operands are code in no language the guard reads.
func checkTokens(w *walker, c *command) {
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

func checkAnsible(w *walker, c *command) {
	module := ""
	for _, x := range c.valuesOf("-m", "--module-name") {
		module = x.text
	}
	switch module {
	case "ping", "setup", "debug", "stat", "gather_facts":
		return
	case "", "command", "shell", "raw", "script", "ansible.builtin.shell", "ansible.builtin.command", "ansible.builtin.raw":
		far := w.far
		w.far = true
		for _, x := range c.valuesOf("-a", "--args") {
			w.code(x)
		}
		w.far = far
	case "reboot", "ansible.builtin.reboot":
		w.addWord(high, "switches-off", c.at)
	}
}
