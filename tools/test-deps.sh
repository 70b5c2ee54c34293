#!/usr/bin/env bash
# Installs what `make test` needs and this machine lacks, by the system's package manager (apt-get or brew): a C compiler
# (for the race detector, on Linux), PostgreSQL's server programs, Node 20 or newer, a Chromium, and on Linux tmux with
# the programs that the shell tests run in it (vim, less, top). It says what it does, and does nothing where all is
# there. BUTLER_TEST_DEPS=check only says what is missing.
#
# Where things are is left in .cache/test-env, which tools/test.sh reads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

os=$(uname -s)
mkdir -p .cache

say() { printf 'test-deps: %s\n' "$*"; }

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		say "this needs root, and there is no sudo: run as root: $*"
		exit 1
	fi
}

# Prints the folder of PostgreSQL's server programs. Debian and Homebrew keep them off the PATH.
postgres_dir() {
	local dir candidates=()
	if command -v initdb >/dev/null && command -v postgres >/dev/null; then
		dirname "$(command -v postgres)"
		return
	fi
	shopt -s nullglob
	candidates=(/usr/lib/postgresql/*/bin /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin)
	shopt -u nullglob
	for dir in ${candidates[@]+"${candidates[@]}"}; do
		if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then echo "$dir"; fi
	done | sort -V | tail -1
}

local_node=$PWD/.cache/node/node_modules/.bin

# Prints the folder of a Node that is new enough, with npm somewhere on the PATH.
node_dir() {
	local dir
	for dir in "$local_node" "$(dirname "$(command -v node || echo /nowhere/node)")"; do
		if [ -x "$dir/node" ] && command -v npm >/dev/null &&
			[ "$("$dir/node" -p 'process.versions.node.split(".")[0]')" -ge 20 ]; then
			echo "$dir"
			return
		fi
	done
}

browser() {
	local name
	if [ -n "${CHROMIUM:-}" ]; then # as the browser tests name it
		echo "$CHROMIUM"
		return
	fi
	for name in chromium chromium-browser google-chrome google-chrome-stable; do
		if command -v "$name"; then return; fi
	done
	for name in '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome' \
		'/Applications/Chromium.app/Contents/MacOS/Chromium'; do
		if [ -x "$name" ]; then
			echo "$name"
			return
		fi
	done
}

missing=()
if [ "$os" = Linux ] && ! command -v "${CC:-gcc}" >/dev/null; then missing+=(gcc); fi
if [ -z "$(postgres_dir)" ]; then missing+=(postgresql); fi
if [ -z "$(node_dir)" ]; then missing+=(node); fi
if [ -z "$(browser)" ]; then missing+=(chromium); fi
if [ "$os" = Linux ]; then
	for program in tmux vim less top; do
		if ! command -v "$program" >/dev/null; then missing+=("$program"); fi
	done
fi

install_apt() {
	local packages=() p
	for p in "$@"; do
		case $p in
		gcc) packages+=(gcc libc6-dev) ;;
		postgresql)
			packages+=(postgresql)
			say "the package postgresql may also start a server of its own, on port 5432; the tests do not use it"
			;;
		node) packages+=(nodejs) && { command -v npm >/dev/null || packages+=(npm); } ;;
		chromium) packages+=(chromium) ;;
		tmux | vim | less) packages+=("$p") ;;
		top) packages+=(procps) ;;
		esac
	done
	say "apt-get install ${packages[*]}"
	as_root apt-get update -q || say "apt-get update failed; going on with the lists that are there"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
	if [ -z "$(node_dir)" ]; then
		# Debian 12 and Ubuntu 24.04 have Node 18. The npm package "node" holds the program itself.
		say "the system's Node is too old: npm install node@22 into .cache/node"
		npm install --silent --no-fund --no-audit --prefix .cache/node node@22
	fi
}

install_brew() {
	local p
	for p in "$@"; do
		case $p in
		postgresql) say "brew install postgresql@17" && brew install postgresql@17 ;;
		node) say "brew install node" && brew install node ;;
		chromium) say "brew install --cask google-chrome" && brew install --cask google-chrome ;;
		esac
	done
}

if [ ${#missing[@]} -gt 0 ]; then
	say "missing: ${missing[*]}"
	if [ "${BUTLER_TEST_DEPS:-install}" = check ]; then exit 1; fi
	if command -v apt-get >/dev/null; then
		install_apt "${missing[@]}"
	elif command -v brew >/dev/null; then
		install_brew "${missing[@]}"
	else
		say "neither apt-get nor brew is here: install these yourself, then run make test again"
		exit 1
	fi
fi

for found in "PostgreSQL:$(postgres_dir)" "Node 20 or newer:$(node_dir)" "Chromium:$(browser)"; do
	if [ -z "${found#*:}" ]; then
		say "${found%%:*} was not found, although its package is installed"
		exit 1
	fi
done

# What is on the PATH already is not moved to its front: /usr/bin there would hide a newer Go.
{
	dir=$(node_dir)
	if [ "$dir/node" != "$(command -v node)" ]; then printf 'export PATH=%q:"$PATH"\n' "$dir"; fi
	if ! command -v initdb >/dev/null; then printf 'export PATH="$PATH":%q\n' "$(postgres_dir)"; fi
	printf 'export CHROMIUM=%q\n' "$(browser)"
} >.cache/test-env
