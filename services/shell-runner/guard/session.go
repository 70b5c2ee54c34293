package guard

import (
	"slices"
	"strings"
)

var (
	// oddOptions make a shell read a line in another way than the guard does: assignments anywhere (keyword), variables
	// that outlive a pipe (lastpipe), escapes in echo (xpg_echo). Which file names match, and when a shell gives up, is no
	// such thing.
	oddOptions = set(`keyword posix noexec onecmd extdebug lastpipe nocasematch xpg_echo cdable_vars restricted_shell
		compat31 compat32 compat40 compat41 compat42 compat43 compat44`)
	// usualOptions are on in every interactive bash: without them braces, comments and aliases mean something else.
	usualOptions = []string{"braceexpand", "expand_aliases", "interactive_comments"}
)

// shellOptions asks about a line for a shell in which it may mean something else.
func (c *check) shellOptions(options []string) {
	if len(options) == 0 {
		return
	}
	var odd []string
	for _, name := range options {
		if oddOptions[name] {
			odd = append(odd, name)
		}
	}
	for _, name := range usualOptions {
		if !slices.Contains(options, name) {
			odd = append(odd, "no "+name)
		}
	}
	if len(odd) > 0 {
		c.add(medium, "shell-option", 0, len(c.req.Text), strings.Join(odd, ", "))
	}
}
