package guard

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// place is what kind of place a path names. Larger is worse to write to.
type place int

const (
	placeSink      place = iota // /dev/null and the like: nothing is kept
	placeTemp                   // /tmp
	placeOpen                   // the working directory, the home, a mount: a bounded change
	placeUnknown                // the text does not say
	placeStartup                // read when a shell, a desktop, git or cron starts: runs later
	placeSystem                 // of the operating system or another person
	placeDevice                 // a device, or a switch of the kernel
	placeOwn                    // of Butler
	placeWholeDisk              // a disk or a partition
)

// writeRisk gives what writing to such a place risks, and the reason's code.
func (p place) writeRisk() (level, string) {
	switch p {
	case placeSink:
		return low, ""
	case placeStartup:
		return high, "writes-startup"
	case placeSystem:
		return high, "writes-system"
	case placeDevice:
		return high, "writes-device"
	case placeOwn:
		return high, "touches-butler"
	case placeWholeDisk:
		return critical, "overwrites-disk"
	default:
		return medium, "writes-file"
	}
}

// Trees of the operating system. What is under the working directory of a project in systemShared is not.
var (
	systemTrees = []string{
		"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin", "/sys", "/usr",
		"/var", "/home", "/System", "/Library", "/Applications", "/nix", "/snap",
	}
	systemShared = []string{"/srv", "/opt", "/mnt", "/media", "/var/www", "/usr/src", "/usr/local/src", "/home", "/root"}
	// essential folders are never removed from a chat, as little as / itself.
	essential = []string{
		"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/proc", "/root", "/sbin", "/sys",
		"/usr", "/var", "/Users", "/System", "/Library",
	}
	tempTrees = []string{"/tmp", "/var/tmp", "/dev/shm"}
	sinks     = []string{
		"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty", "/dev/fd/1", "/dev/fd/2", "/dev/zero", "/dev/full",
	}
	diskPrefixes = []string{
		"/dev/sd", "/dev/hd", "/dev/vd", "/dev/xvd", "/dev/nvme", "/dev/mmcblk", "/dev/mapper/", "/dev/disk", "/dev/dm-",
		"/dev/md", "/dev/rdisk", "/dev/mem", "/dev/kmem", "/dev/nbd", "/dev/bcache", "/dev/zd",
	}
	// homeQuiet are dot folders of a home where a file does not run later.
	homeQuiet = []string{".cache", ".npm", ".m2", ".gradle", ".cargo/registry", ".local/share", ".local/state", ".Trash", ".yarn"}
	ownTrees  = []string{"/run/butler", "/var/run/butler", "/var/lib/butler", "/etc/butler", "/run/user/*/butler"}
	ownHome   = []string{".butler", ".config/butler", ".local/share/butler", ".local/state/butler", ".cache/butler"}
)

func cleanPath(p string) string { return path.Clean(p) }

func under(p, tree string) bool {
	return p == tree || tree == "/" || strings.HasPrefix(p, tree) && p[len(tree)] == '/'
}

func underAny(p string, trees []string) bool {
	return slices.ContainsFunc(trees, func(t string) bool { return under(p, t) })
}

// absolute gives the paths that p may name: one for each directory the shell may be in. Parts that are not known, or
// left to file name patterns, end a path: what follows them is not looked at, and cut says so.
func (w *walker) absolute(p string) (paths []string, cut bool) {
	if i := strings.Index(p, unknown); i >= 0 {
		p, cut = p[:i], true
	}
	if p == "" && cut {
		return nil, true
	}
	if strings.HasPrefix(p, "/") {
		return []string{cleanPath(p)}, cut
	}
	for _, d := range w.sc.dirs {
		if strings.HasPrefix(d, unknown) {
			continue
		}
		paths = append(paths, cleanPath(d+"/"+p))
	}
	return paths, cut
}

// tilde gives the folder that ~name stands for.
func (w *walker) tilde(name string) (string, bool) {
	switch {
	case name == "":
		if v, ok := w.sc.lookup("HOME"); ok && len(v) == 1 {
			return v[0], true
		}
		return unknown, true
	case name == "+":
		if v, ok := w.sc.lookup("PWD"); ok {
			return v[0], true
		}
		return unknown, true
	case name == "-":
		return unknown, true
	case name == "root":
		return "/root", true
	case isLetters(name[:1]) && !strings.ContainsAny(name, `\*?["'`):
		return "/home/" + name, true
	}
	return "", false
}

// place classifies the path a word names; the worst of what it may be.
func (w *walker) place(x word) place {
	if w.far {
		return placeOpen
	}
	paths, cut := w.absolute(x.text)
	if len(paths) == 0 {
		return placeUnknown
	}
	worst := placeSink
	for _, p := range paths {
		worst = max(worst, w.placeOf(p, x.glob || cut))
	}
	return worst
}

// placeOf classifies an absolute path; open says that more may follow, or that it has patterns in it.
func (w *walker) placeOf(p string, open bool) place {
	home := w.c.home
	if i := strings.IndexAny(p, "*?["); i >= 0 && open {
		// /e*c/passwd may be anything in the folder before the pattern.
		p = cleanPath(p[:strings.LastIndexByte(p[:i], '/')+1])
	}
	switch {
	case w.own(p):
		return placeOwn
	case slices.Contains(sinks, p), strings.HasPrefix(p, "/dev/fd/"):
		return placeSink
	case strings.HasPrefix(p, "/dev/tcp/"), strings.HasPrefix(p, "/dev/udp/"):
		return placeDevice
	case underAny(p, tempTrees):
		return placeTemp
	case slices.ContainsFunc(diskPrefixes, func(d string) bool { return strings.HasPrefix(p, d) }):
		return placeWholeDisk
	case under(p, "/dev"):
		return placeDevice
	case under(p, "/proc"), under(p, "/sys"):
		return placeDevice
	case p == "/":
		return placeSystem
	}
	if rel, ok := strings.CutPrefix(p, home+"/"); ok {
		return homePlace(rel)
	}
	if p == home {
		return placeOpen
	}
	dir := w.c.dir
	if dir != "/" && under(p, dir) && (underAny(dir, systemShared) || !underAny(dir, systemTrees)) {
		return projectPlace(strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"))
	}
	if underAny(p, systemTrees) || under(p, "/srv") || under(p, "/opt") {
		return placeSystem
	}
	return placeOpen
}

func homePlace(rel string) place {
	if underAny(rel, homeQuiet) && !strings.HasPrefix(rel, ".local/share/applications") && !strings.HasPrefix(rel, ".local/share/systemd") {
		return placeOpen
	}
	if rel[0] == '.' || strings.HasPrefix(rel, "bin/") || strings.HasPrefix(rel, "go/bin/") || strings.HasPrefix(rel, "Library/LaunchAgents") {
		return placeStartup
	}
	return projectPlace(rel)
}

// projectPlace finds the files of a project that run by themselves.
func projectPlace(rel string) place {
	slash := "/" + rel
	if strings.Contains(slash, "/.git/") || strings.HasSuffix(slash, "/.git") || strings.Contains(slash, "/.husky/") ||
		strings.HasSuffix(slash, "/.envrc") || strings.Contains(slash, "/.ssh/") {
		return placeStartup
	}
	return placeOpen
}

// own says whether a path belongs to Butler itself.
func (w *walker) own(p string) bool {
	if underAny(p, ownTrees) || underAny(p, w.c.g.protected) || strings.HasPrefix(p, "/run/user/") && strings.Contains(p, "/butler") {
		return true
	}
	rel, ok := strings.CutPrefix(p, w.c.home+"/")
	return ok && underAny(rel, ownHome)
}

// writeTo judges that the command writes to the path a word names.
func (w *walker) writeTo(x word) {
	if x.text == "" || x.text == "-" {
		return
	}
	l, code := w.place(x).writeRisk()
	if l > low {
		w.addWord(l, code, x)
	}
	if paths, cut := w.absolute(x.text); !cut && !x.glob {
		for _, p := range paths {
			w.c.written[p] = true
		}
	}
}

// Names of files whose content is secret, by their last element and by their folders.
var (
	secretBases = []string{
		"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", ".netrc", "_netrc", ".pgpass", ".my.cnf",
		".git-credentials", ".htpasswd", "shadow", "gshadow", ".npmrc", ".pypirc", ".vault-token", "credentials.json",
		"service-account.json", "service_account.json", "secrets.yml", "secrets.yaml", "secrets.json", "secrets.toml", ".secrets",
		"master.key", "kubeconfig", ".dockercfg", ".boto", ".s3cfg", "wp-config.php", ".bash_history", ".zsh_history",
		".python_history", ".psql_history", ".mysql_history", "credentials", "tfstate", "terraform.tfstate", "krb5.keytab",
		"sudoers", "hosts.yml", "opasswd", "security.yaml", ".envrc", ".rediscli_history", "private.pem",
	}
	secretSuffixes = []string{".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".keytab", ".ppk", ".asc.key", ".tfstate", ".nk", ".creds"}
	secretFolders  = []string{"/.ssh/", "/.aws/", "/.gnupg/", "/.kube/", "/.azure/", "/.config/gcloud/", "/.docker/config.json",
		"/.password-store/", "/run/secrets/", "/var/run/secrets/", "/.config/gh/", "/.mozilla/", "/Keychains/", "/etc/ssl/private/",
		"/.local/share/keyrings/", "/etc/letsencrypt/live/", "/etc/letsencrypt/archive/", "/.config/op/", "/.terraform.d/credentials"}
	publicNames = []string{"known_hosts", "config", "authorized_keys", "environment"}
)

// publicPEM are certificates, which share an ending with keys.
var publicPEM = regexp.MustCompile(`(?i)cert|chain|crt|public|pub\.|^ca[.-]|-ca\.|bundle`)

// secretPath says whether the content of a file is secret, judged by its name.
func secretPath(p string) bool {
	p = strings.TrimRight(p, "/")
	base := path.Base(p)
	switch {
	case strings.HasSuffix(base, ".pub"), strings.HasSuffix(base, ".example"), strings.HasSuffix(base, ".sample"),
		strings.HasSuffix(base, ".template"), strings.HasSuffix(base, ".dist"):
		return false
	case slices.Contains(secretBases, base):
		return true
	case base == ".env" || strings.HasPrefix(base, ".env."):
		return true
	case strings.HasSuffix(base, ".pem") && publicPEM.MatchString(base):
		return false
	case base != ".pem" && slices.ContainsFunc(secretSuffixes, func(s string) bool { return strings.HasSuffix(base, s) }):
		return true
	}
	slash := p + "/"
	if strings.HasPrefix(p, ".") {
		slash = "/" + slash
	}
	for _, f := range secretFolders {
		if strings.Contains(slash, f) {
			return f != "/.ssh/" || base == ".ssh" || !slices.Contains(publicNames, base)
		}
	}
	return strings.HasSuffix(slash, "/.env/")
}

// kernelSecret finds the files of /proc that hold the memory or the environment of a program, and raw devices.
func kernelSecret(p string) bool {
	if rel, ok := strings.CutPrefix(p, "/proc/"); ok {
		for _, end := range []string{"/environ", "/mem", "/maps", "/root", "/cwd", "/auxv"} {
			if strings.HasSuffix(rel, end) || strings.Contains(rel, end+"/") {
				return true
			}
		}
		return strings.Contains(rel, "/fd/") || strings.HasPrefix(rel, "kcore") || strings.HasPrefix(rel, "kmem")
	}
	return p == "/dev/mem" || p == "/dev/kmem" || p == "/dev/port"
}

// readFrom judges that the command reads what a word names; sends says that it goes to another host.
func (w *walker) readFrom(x word, sends bool) {
	for _, part := range readParts(x.text) {
		w.readPart(x, part, sends)
	}
}

// readParts gives what in an argument may be a path: all of it, and what follows = or @.
func readParts(s string) []string {
	parts := []string{s}
	for _, sep := range []string{"=", "@", ":"} {
		if _, after, ok := strings.Cut(s, sep); ok && after != "" {
			parts = append(parts, strings.TrimPrefix(after, "@"))
		}
	}
	return parts
}

func (w *walker) readPart(x word, p string, sends bool) {
	if p == "" || strings.Contains(p, "://") {
		return
	}
	if i := strings.LastIndex(p, "/"); strings.Contains(p, unknown) && (i < 0 || strings.Contains(p[i:], unknown)) && secretPath(p[:max(i, 0)]) {
		w.addWord(medium, "reads-secret", x)
		return
	}
	if strings.HasPrefix(p, "/proc/") && strings.Contains(p, unknown) && kernelSecret(p) {
		w.addWord(high, "reads-process", x)
		return
	}
	paths, _ := w.absolute(p)
	for _, abs := range append(paths, p) {
		switch {
		case w.own(abs):
			w.addWord(high, "touches-butler", x)
		case kernelSecret(abs):
			w.addWord(high, "reads-process", x)
		case !strings.HasPrefix(abs, "-") && (secretPath(abs) || x.glob && secretGlob(abs)):
			if sends {
				w.addWord(high, "sends-secret", x)
			} else {
				w.addWord(medium, "reads-secret", x)
			}
		default:
			continue
		}
		return
	}
}

// secretGlob says whether a file name pattern reaches into a folder of secrets, or may match a secret file.
func secretGlob(p string) bool {
	base := path.Base(p)
	// ~/.s?h/*: a pattern for a folder.
	for _, dir := range strings.Split(path.Dir(p), "/") {
		if !strings.HasPrefix(dir, ".") || !strings.ContainsAny(dir, "*?[") {
			continue
		}
		for _, f := range secretFolders {
			first, _, _ := strings.Cut(strings.TrimPrefix(f, "/"), "/")
			if ok, _ := path.Match(dir, first); ok && strings.HasPrefix(first, ".") {
				return true
			}
		}
	}
	for _, b := range []string{".env", "id_rsa", "id_ed25519", "shadow", ".netrc", "credentials"} {
		if base != "*" && strings.ContainsAny(base, "*?[") && !strings.HasPrefix(base, "*.") {
			if ok, _ := path.Match(base, b); ok {
				return true
			}
		}
	}
	return false
}

// removes judges that the command removes what a word names.
func (w *walker) removes(x word, recursive bool) {
	if w.far {
		if recursive && slices.Contains(essential, cleanPath(strings.TrimSuffix(x.text, "*"))) {
			w.addWord(critical, "removes-everything", x)
		} else if recursive {
			w.addWord(high, "removes-far", x)
		}
		return
	}
	paths, cut := w.absolute(x.text)
	if len(paths) == 0 {
		if recursive || !x.known() && x.text == unknown {
			w.addWord(high, "removes-unknown", x)
		}
		return
	}
	for _, p := range paths {
		w.removesPath(x, p, cut, recursive)
	}
}

func (w *walker) removesPath(x word, p string, cut, recursive bool) {
	all := p // the folder that goes, with a pattern for all of its content taken for itself
	for _, star := range []string{"/*", "/.*", "/**", "/.[!.]*", "/?*"} {
		all = strings.TrimSuffix(all, star)
	}
	if all == "" {
		all = "/"
	}
	dotted := x.glob && all != p
	switch {
	case cut && recursive && len(strings.Trim(p, "/")) == 0:
		w.addWord(high, "removes-unknown", x)
	case cut && recursive:
		w.addWord(high, "removes-unknown", x)
	case recursive && (slices.Contains(essential, all) || all == w.c.home || under(w.c.home, all)):
		w.addWord(critical, "removes-everything", x)
	case recursive && strings.HasPrefix(all, "/home/") && strings.Count(all, "/") == 2:
		w.addWord(critical, "removes-everything", x)
	case recursive && x.glob && strings.HasPrefix(p, "/") && strings.IndexAny(p, "*?[") == 1:
		w.addWord(critical, "removes-everything", x)
	case recursive && (all == w.c.dir || under(w.c.dir, all)) && (!dotted || p[len(p)-1] == '*'):
		w.addWord(high, "removes-project", x)
	default:
		switch w.placeOf(p, x.glob) {
		case placeSystem, placeDevice, placeWholeDisk:
			w.addWord(high, "removes-system", x)
		case placeStartup:
			w.addWord(high, "removes-settings", x)
		case placeOwn:
			w.addWord(high, "touches-butler", x)
		case placeOpen:
			if rel, ok := strings.CutPrefix(p, w.c.home+"/"); ok && recursive && !strings.Contains(rel, "/") && !under(p, w.c.dir) {
				w.addWord(high, "removes-home-folder", x)
			}
		default:
		}
	}
}
