package guard

import (
	"slices"
	"strings"
)

// builtins are the commands of the shell itself: a function of that name changes what every later line does.
var builtins = set(`. : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs
	disown echo enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile
	popd printf pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type
	typeset ulimit umask unalias unset wait command_not_found_handle`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, word := range strings.Fields(words) {
		m[word] = true
	}
	return m
}

// Variables by what they do to later commands.
var (
	// What they hold is loaded or executed by ordinary programs.
	runningVariables = set(`LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT DYLD_INSERT_LIBRARIES DYLD_LIBRARY_PATH BASH_ENV ENV
		PROMPT_COMMAND SHELLOPTS BASHOPTS GIT_SSH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_EXEC_PATH GIT_PROXY_COMMAND
		GIT_ASKPASS SSH_ASKPASS GIT_CONFIG_COUNT GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG_PARAMETERS GIT_SEQUENCE_EDITOR
		GIT_TEMPLATE_DIR GIT_DIR GIT_WORK_TREE PERL5OPT PERL5LIB PERL5DB PYTHONSTARTUP PYTHONPATH PYTHONHOME RUBYOPT RUBYLIB NODE_OPTIONS NODE_PATH
		JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS LESSOPEN LESSCLOSE MANOPT TAR_OPTIONS ZDOTDIR INPUTRC HOME SUDO_ASKPASS
		GCONV_PATH HOSTALIASES LUA_INIT AWKPATH PHPRC TERMINFO VIMINIT EXINIT RSYNC_RSH CVS_RSH PROMPT_DIRTRIM
		MAILPATH BASH_LOADABLES_PATH GIT_TRACE GIT_ALLOW_PROTOCOL GIT_COMMON_DIR GIT_OBJECT_DIRECTORY
		GIT_INDEX_FILE LESSEDIT LESSKEYIN LESSKEY KUBECTL_EXTERNAL_DIFF PYTHONBREAKPOINT PYTEST_PLUGINS PYTEST_ADDOPTS
		GOCACHEPROG GOAUTH GOENV GOROOT PKG_CONFIG MAKEFILES RUSTFLAGS RUSTDOC TF_CLI_CONFIG_FILE
		OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES CURL_HOME WGETRC RIPGREP_CONFIG_PATH MANROFFSEQ GROFF_TMAC_PATH LOCPATH
		GOFLAGS GOTOOLCHAIN RUSTC_WRAPPER RUSTC CARGO_BUILD_RUSTC_WRAPPER MAKEFLAGS BROWSER TMUX TMUX_PANE`)
	// They choose a program, a place or a log, in bounds.
	choosingVariables = set(`EDITOR VISUAL PAGER MANPAGER GIT_PAGER GIT_EDITOR SYSTEMD_PAGER SYSTEMD_EDITOR LESS SHELL TMPDIR PATH CDPATH
		HISTFILE HISTCONTROL HISTIGNORE HISTSIZE HISTFILESIZE HISTTIMEFORMAT PS0 PS1 PS2 PS3 PS4 IFS http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
		ALL_PROXY all_proxy KUBECONFIG DOCKER_HOST AWS_PROFILE AWS_ENDPOINT_URL GOPROXY GOPRIVATE GONOSUMDB GOINSECURE
		PIP_INDEX_URL PIP_EXTRA_INDEX_URL NPM_CONFIG_REGISTRY npm_config_registry SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE
		NODE_TLS_REJECT_UNAUTHORIZED GIT_SSL_NO_VERIFY PYTHONHTTPSVERIFY SSLKEYLOGFILE SSH_AUTH_SOCK FCEDIT TMOUT XDG_CONFIG_HOME`)
)

// commandVariables hold a command line that other programs run.
var commandVariables = set(`PAGER GIT_PAGER MANPAGER SYSTEMD_PAGER EDITOR VISUAL GIT_EDITOR SYSTEMD_EDITOR FCEDIT BROWSER`)

// influence says how much the value of a variable decides about later commands.
func influence(name string) level {
	switch {
	case name == "IFS":
		return low // its effect on this text is followed
	case runningVariables[name], strings.HasPrefix(name, "BASH_FUNC_"), strings.HasPrefix(name, "GIT_CONFIG_"),
		strings.HasPrefix(name, "LD_"), strings.HasPrefix(name, "DYLD_"):
		return high
	case strings.HasPrefix(name, "GIT_TRACE"): // GIT_TRACE2_EVENT, …: files that are written
		return high
	case choosingVariables[name], strings.HasPrefix(name, "BUTLER_"), settingName(name):
		return medium
	}
	return low
}

var (
	// Families of variables that configure programs: most name a program to start, a file to load or a place to write.
	settingPrefixes = strings.Fields(`GIT_ NPM_CONFIG_ npm_config_ YARN_ PIP_ CARGO_ RUSTUP_ RUSTC_ PYTHON PYTEST_ NODE_REPL_ LESS
		OPENSSL_ TF_ ANSIBLE_ KUBECTL_ HELM_ DOCKER_ GH_ GLAB_ CGO_ JAVA_ MAVEN_ GRADLE_ BASH_ BUNDLE_ COMPOSER_ AWS_ CLOUDSDK_ XDG_
		GROFF_ COMPOSE_ PGSERVICE PGSYSCONF MYSQL_ M2_ VAGRANT_ PULUMI_`)
	settingSuffixes = strings.Fields(`_PAGER _EDITOR _BROWSER _OPTS _OPTIONS _COMMAND _SHELL _CONFIG _CONFIG_FILE _CONFIG_PATH _PROXY_COMMAND
		_LINKER _RUNNER _WRAPPER _HELPER _ASKPASS _RSH RC`)
	// Compilers, and where programs of the shell look things up.
	settingNames = set(`CC CXX CPP LD AR AS NM RANLIB GCCGO MAKE FC MAILCHECK MAIL EXECIGNORE GLOBIGNORE BASH_XTRACEFD HOSTFILE
		GOPATH GOBIN GOVCS MANPATH NLSPATH TERMCAP FZF_DEFAULT_OPTS FZF_DEFAULT_COMMAND FPATH
		TROFF MANROFFOPT UNZIP UNZIPOPT ZIPOPT POSIXLY_CORRECT`)
	// These choose between harmless ways to do the same.
	harmlessSettings = set(`CGO_ENABLED PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED PYTHONIOENCODING PYTHONUTF8 CARGO_TERM_COLOR
		CARGO_INCREMENTAL GIT_TERMINAL_PROMPT GIT_OPTIONAL_LOCKS DOCKER_BUILDKIT AWS_REGION AWS_DEFAULT_REGION GH_NO_UPDATE_NOTIFIER
		LESSCHARSET GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_AUTHOR_DATE GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL GIT_COMMITTER_DATE
		COMPOSE_PROJECT_NAME COMPOSE_PROFILES MYSQL_PWD GIT_CEILING_DIRECTORIES GIT_DISCOVERY_ACROSS_FILESYSTEM BASH_COMPAT TF_INPUT TF_IN_AUTOMATION`)
)

// settingName says whether a variable's name promises that a program takes more than data from it.
func settingName(name string) bool {
	if harmlessSettings[name] {
		return false
	}
	return settingNames[name] || slices.ContainsFunc(settingPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.ContainsFunc(settingSuffixes, func(s string) bool { return strings.HasSuffix(name, s) && name != s })
}

// pathRisk judges a value of PATH: folders that others may write to come before the programs of the system.
func pathRisk(value string) level {
	for _, dir := range strings.Split(value, ":") {
		if underAny(dir, tempTrees) || dir == "" || dir == "." || dir != unknown && !strings.HasPrefix(dir, "/") && !strings.HasPrefix(dir, unknown) {
			return high
		}
	}
	return medium
}
