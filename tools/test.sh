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

command_page() {
	make --no-print-directory build && tools/cli-page.sh >.cache/cli.md || return 1
	if ! diff -u docs/reference/cli.md .cache/cli.md; then
		echo "docs/reference/cli.md is stale: run make generate"
		return 1
	fi
}

browser_tests() {
	npm ci --prefix web/e2e --no-fund --no-audit && npm test --prefix web/e2e
}

part "Go" go_tests
part "command line's page" command_page
part "page" npm test --prefix web
part "browser" browser_tests

echo
if [ ${#failed[@]} -gt 0 ]; then
	echo "FAILED: ${failed[*]}"
	exit 1
fi
echo "all tests passed"
