package guard

import "strings"

func init() {
	checks["runs"] = checkRuns
	checks["netcat"] = checkNetcat
	checks["mongo"] = checkMongo
	checks["ansible"] = checkAnsible
}

// runners are the subcommands that run a program their operands name: how many operands stand before it, and whether it
// runs elsewhere.
var runners = map[string]struct {
	skip int
	far  bool
}{
	"docker exec": {1, true}, "docker run": {1, true}, "podman exec": {1, true}, "podman run": {1, true},
	"nerdctl exec": {1, true}, "nerdctl run": {1, true}, "docker compose exec": {1, true}, "docker compose run": {1, true},
	"podman compose exec": {1, true}, "kubectl exec": {1, true}, "k exec": {1, true}, "oc exec": {1, true}, "kubectl run": {1, true},
	"npm exec": {}, "pnpm exec": {}, "npm x": {}, "pnpm dlx": {}, "yarn exec": {}, "yarn dlx": {},
	"poetry run": {}, "uv run": {}, "pipenv run": {}, "pdm run": {}, "hatch run": {}, "rye run": {}, "bundle exec": {},
	"npx": {}, "bunx": {}, "pnpx": {},
}

func checkRuns(w *walker, c *command) {
	key := c.name
	r, ok := runners[key]
	n := 0 // operands that name the subcommand
	for !ok && n < 2 && n < len(c.operands) {
		key += " " + c.operands[n].text
		n++
		r, ok = runners[key]
	}
	if !ok {
		return
	}
	rest := afterOperands(c, n+r.skip)
	if len(rest) == 0 {
		return
	}
	far := w.far
	w.far = far || r.far
	if c.p.why != "runs-package" || w.c.g.tables.programs[rest[0].text] != nil {
		w.exec(rest)
	}
	w.far = far
}

// afterOperands gives the arguments after the first n operands, as they stand: the options of what is run are its own.
func afterOperands(c *command, n int) []word {
	args := c.raw
	for i := 0; i < len(args); i++ {
		text := args[i].text
		switch {
		case text == "--":
			if n > 0 && !strings.HasPrefix(c.name, "k") {
				continue
			}
			return args[i+1:]
		case strings.HasPrefix(text, "-") && len(text) > 1:
			if c.p.values[text] || len(text) > 2 && text[1] != '-' && c.p.values["-"+text[len(text)-1:]] {
				i++
			}
			continue
		case n == 0:
			return args[i:]
		}
		n--
	}
	return nil
}

func checkNetcat(w *walker, c *command) {
	switch w.sc.stdin.kind {
	case fromPipe, fromFile:
		w.addWord(high, "sends-input", c.at)
	default:
	}
	checkNetwork(w, c)
}

func checkMongo(w *walker, c *command) {
	for _, x := range c.valuesOf("--eval") {
		lower := strings.ToLower(x.text)
		for _, bad := range []string{"drop", "delete", "remove", "update", "shutdown", "insert", "fsync", "createuser", "grant", "run(", "rename"} {
			if strings.Contains(lower, bad) {
				w.addWord(high, "loses-database", x)
				break
			}
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
