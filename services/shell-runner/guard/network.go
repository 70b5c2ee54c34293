package guard

import (
	"regexp"
	"strings"
)

// Whatever asks another host also tells it something: its name, its path, a header. So what comes from elsewhere than the
// text (the output of a command, a variable, what xargs read) may leave by it.

// leaves says whether an argument may hold more than the text shows.
func leaves(x word) bool { return x.substs || x.data || x.process }

// checkNetwork judges programs all of whose arguments go to another host.
func checkNetwork(w *walker, c *command) {
	for _, x := range c.words[1:] {
		if leaves(x) {
			w.addWord(medium, "sends-computed", x)
		}
	}
	for _, x := range c.operands {
		if scheme, _, ok := strings.Cut(strings.ToLower(x.text), "://"); ok && !harmlessSchemes[scheme] {
			w.addWord(medium, "opens-connection", x) // telnet, gopher, dict, smtp, …: they speak as they are told
		}
	}
}

var harmlessSchemes = set(`http https ftp ftps file ws wss`)

// connection is how PostgreSQL's programs take a host among other parameters: dbname=x host=y.
var connection = regexp.MustCompile(`^(\w+=\S* +)*host(addr)?=`)

// checkAddress judges programs that ask a host of their own choice, unless an argument names another one: computed
// arguments are as usual, a computed address is not.
func checkAddress(w *walker, c *command) {
	named := false
	for i, x := range c.words[1:] {
		text := x.text
		switch {
		case strings.Contains(text, "://"), strings.HasPrefix(text, "-h") && c.p.values["-h"] && len(text) > 2, strings.HasPrefix(text, "--host="),
			connection.MatchString(text):
			named = true
			if leaves(x) {
				w.addWord(medium, "sends-computed", x)
			}
		case (text == "-h" && c.p.values["-h"] || text == "--host") && i+2 < len(c.words):
			named = true
		}
	}
	if !named {
		return
	}
	for _, x := range c.words[1:] {
		if leaves(x) {
			w.addWord(medium, "sends-computed", x)
		}
	}
}

// checkModules judges that go looks for a module on the host that its name begins with.
func checkModules(w *walker, c *command) {
	if len(c.operands) > 1 && c.operands[0].text == "tool" {
		checkAddress(w, c) // pprof fetches its profile
		return
	}
	if len(c.operands) == 0 || c.operands[0].text != "mod" && !(c.operands[0].text == "list" && c.has("-m")) {
		return
	}
	for _, x := range c.operands[1:] {
		if leaves(x) {
			w.addWord(medium, "sends-computed", x)
		}
	}
}

// checkSends judges programs that may send what they are given on standard input to another host.
func checkSends(w *walker, c *command) {
	if len(c.operands) == 0 || c.operands[0].text != "s_client" && c.operands[0].text != "s_time" {
		return
	}
	w.sendsInput(c)
	checkNetwork(w, c)
}

// sendsInput judges that standard input goes to another host: text of the line may, unless a part of it is computed.
func (w *walker) sendsInput(c *command) {
	switch in := w.sc.stdin; in.kind {
	case fromPipe, fromFile:
		w.addWord(high, "sends-input", c.at)
	case fromText:
		if strings.Contains(in.text, unknown) {
			w.addWord(high, "sends-input", c.at)
		}
	}
}

func checkNetcat(w *walker, c *command) {
	w.sendsInput(c)
	checkNetwork(w, c)
}

// checkInput judges programs that ask about, or send, what they read from standard input when it is no terminal.
func checkInput(w *walker, c *command) {
	if len(c.operands) == 0 || c.p.why == "sends-out" {
		w.sendsInput(c)
	}
}
