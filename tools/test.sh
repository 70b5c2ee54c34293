#!/usr/bin/env bash
# Every test, in the order of what is most likely to fail soon. All parts run, also when one failed; the last lines say
# which did. Used by `make test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=/dev/null
source .cache/test-env

failed=()
part() {
	local name=$1 started=$SECONDS
	shift
	printf '\n== %s\n' "$name"
	if "$@"; then
		printf '== %s: passed (%d s)\n' "$name" $((SECONDS - started))
	else
		printf '== %s: FAILED (%d s)\n' "$name" $((SECONDS - started))
		failed+=("$name")
	fi
}

# The folders of the workspace's modules, as patterns.
patterns() { go list -m -f '{{.Dir}}/...'; }

go_tests() {
	local gotestsum
	gotestsum=$(tools/tool.sh gotestsum) || return 1
	# shellcheck disable=SC2046
	CGO_ENABLED=1 "$gotestsum" --format pkgname --format-hide-empty-pkg -- \
		-race -timeout 15m ${GOTESTFLAGS:-} $(patterns)
}

# node --test takes folders or patterns, depending on Node's version: give it files.
node_tests() {
	local files=() f
	while IFS= read -r f; do files+=("$f"); done < <(find "$1" -name node_modules -prune -o -name '*.test.*js' -print | sort)
	if [ ${#files[@]} -eq 0 ]; then
		echo "no *.test.js in $1"
		return 1
	fi
	node --test "${files[@]}"
}

browser_tests() {
	(cd web/e2e && npm ci --no-fund --no-audit) && node_tests web/e2e
}

part "Go" go_tests
if [ -d web/test ]; then part "page" node_tests web/test; fi
if [ -d web/e2e ]; then
	part "build" make --no-print-directory build
	export BUTLER_BIN=$PWD/bin/butler
	part "browser" browser_tests
fi

echo
if [ ${#failed[@]} -gt 0 ]; then
	echo "FAILED: ${failed[*]}"
	exit 1
fi
echo "all tests passed"
