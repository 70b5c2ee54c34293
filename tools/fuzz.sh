#!/usr/bin/env bash
# fuzz.sh TIME: runs every fuzz target of the repository for TIME, one after the other. A failing input is left in the
# package's testdata/fuzz by the go command: commit it with the repair.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:?usage: tools/fuzz.sh TIME}

grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' pkg services internal e2e | sort -u | while IFS=: read -r file decl; do
	target=${decl#func }
	echo "== $(dirname "$file") $target"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time" </dev/null
done
