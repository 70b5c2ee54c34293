package guard

import (
	"path"
	"slices"
	"strings"
)

func checkFD(w *walker, c *command) {
	for i, x := range c.words[1:] {
		inline, runs := fdRuns(x.text)
		if !runs {
			continue
		}
		rest := append([]word(nil), c.words[i+2:]...)
		if inline != "" {
			rest = append([]word{x.with(inline)}, rest...)
		}
		rest = append(rest, word{text: unknown, data: true, start: c.at.start, end: c.at.end})
		if len(rest) > 1 {
			w.exec(rest)
		}
		return
	}
}

// fdRuns says whether an argument of fd begins a command, and the part of it that already belongs to that.
func fdRuns(s string) (inline string, runs bool) {
	name, value, _ := strings.Cut(s, "=")
	if name == "--exec" || name == "--exec-batch" {
		return value, true
	}
	if len(s) < 2 || s[0] != '-' || s[1] == '-' {
		return "", false
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case 'x', 'X':
			return strings.TrimPrefix(s[i+1:], "="), true
		case 't', 'e', 'E', 'd', 'c', 'j', 'S', 'o': // the rest is a value
			return "", false
		}
	}
	return "", false
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
			paths, _ := w.absolute(x.text)
			secret = secret || slices.ContainsFunc(paths, secretPath)
			if secret && w.sc.listed {
				w.addWord(medium, "reads-secret", x)
			}
			continue
		case text == "!" || text == "(" || text == ")" || text == ",":
			begun = true
			continue
		}
		if takes, ok := findTests[text]; ok {
			begun = begun || len(text) > 2
			if takes {
				i++
				secret = secret || i < len(args) && strings.HasSuffix(text, "name") && (secretPath(args[i].text) || secretGlob(args[i].text))
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
			for end < len(args) && args[end].text != ";" && (args[end].text != "+" || args[end-1].text != "{}") {
				end++
			}
			inner := append([]word(nil), args[i+1:end]...)
			if len(inner) > 0 && strings.Contains(inner[0].text, "{}") {
				w.addWord(high, "computed-command", inner[0])
			} else if len(inner) > 0 {
				name := path.Base(inner[0].text)
				for j := range inner {
					inner[j].text = strings.ReplaceAll(inner[j].text, "{}", unknown)
					inner[j].data = inner[j].data || !inner[j].known()
				}
				w.isolated(func() {
					if strings.HasSuffix(text, "dir") && len(roots) > 0 { // in the folder of what is found
						var dirs []string
						for _, r := range roots {
							paths, _ := w.absolute(r.text)
							dirs = append(dirs, paths...)
						}
						w.sc.dirs = append(dirs, unknown)
					}
					w.exec(inner)
				})
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
