package guard

import "strings"

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

// checkImage judges where an image is built from: a Dockerfile runs what it says, with the network.
func checkImage(w *walker, c *command) {
	ops := c.operands
	for len(ops) > 0 && (ops[0].text == "image" || ops[0].text == "buildx" || ops[0].text == "builder") {
		ops = ops[1:]
	}
	if len(ops) > 0 && (ops[0].text == "search" || ops[0].text == "manifest") {
		checkNetwork(w, c)
	}
	if w.far || len(ops) == 0 || ops[0].text != "build" && ops[0].text != "compose" && ops[0].text != "bake" {
		return
	}
	for _, x := range c.valuesOf("-f") {
		if w.outside(x) {
			w.addWord(medium, "points-elsewhere", x)
		}
	}
	w.strayed(c)
	if ops[0].text != "build" {
		return
	}
	for _, x := range ops[1:] {
		if strings.Contains(x.text, "://") || strings.HasPrefix(x.text, "git@") || strings.HasPrefix(x.text, "github.com/") {
			w.addWord(high, "runs-remote", x)
		} else if x.text != "-" && w.outside(x) {
			w.addWord(medium, "points-elsewhere", x)
		}
	}
	if len(ops) > 1 && ops[len(ops)-1].text == "-" && w.sc.stdin.kind != fromText {
		w.addWord(medium, "runs-input", ops[len(ops)-1])
	}
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
	if c.p.why == "runs-package" && len(c.operands) > n {
		for _, o := range c.options { // before the name of the program they say where it comes from
			if o.at < indexOf(c.raw, c.operands[n]) && (o.name == "-p" || o.name == "-c" || o.name == "-y" || o.name == "--yes") {
				w.addWord(medium, "runs-package", c.at)
			}
		}
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
