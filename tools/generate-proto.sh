#!/usr/bin/env bash
# generate-proto.sh OUT: writes the Go code of proto/ under the folder OUT, with the pinned buf and plugins.
set -euo pipefail
out=$(cd "${1:?usage: tools/generate-proto.sh OUT}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

plugins=
for name in protoc-gen-go protoc-gen-go-grpc; do
	plugins=$(dirname "$(tools/tool.sh $name)"):$plugins
done
buf=$(tools/tool.sh buf)
cd proto
PATH=$plugins$PATH "$buf" generate --output "$out"
