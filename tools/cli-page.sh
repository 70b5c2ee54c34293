#!/usr/bin/env bash
# cli-page.sh: prints the reference page of the command line, made of what bin/butler itself says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
butler=$PWD/bin/butler
# What help prints must not depend on who runs it.
ask() { env -i HOME=/home/you COLUMNS=100 "$butler" "$@" 2>/dev/null; }

section() {
	local help
	help=$(ask "$@" --help)
	printf '\n## butler%s\n\n```\n%s\n```\n' "${*:+ $*}" "$help"
	if ! grep -q '\[command\]' <<<"$help"; then return; fi
	local name
	# Cobra's own completion lists the sub-commands, one a line: name, tab, description.
	while IFS=$'\t' read -r name _; do
		case $name in
		help | completion | :* | -*) ;;
		*) section "$@" "$name" ;;
		esac
	done < <(ask __complete "$@" "")
}

cat <<'PAGE'
<!-- Generated from the program's own help by make generate. Do not edit. -->
# Command line

`butler completion --help` says how a shell completes all this.
PAGE
section
