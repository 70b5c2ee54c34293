#!/usr/bin/env bash
# tool.sh NAME: prints the path of a development tool, built from the version that tools/go.mod pins. A tool is built
# once for each version, into .cache/tools; nothing else is installed and no service is asked.
set -euo pipefail

name=${1:?usage: tools/tool.sh NAME}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${BUTLER_TOOLS_CACHE:-$here/../.cache/tools}
export GOWORK=off GOFLAGS=

case $name in
buf) module=github.com/bufbuild/buf package=$module/cmd/buf ;;
protoc-gen-go) module=google.golang.org/protobuf package=$module/cmd/protoc-gen-go ;;
protoc-gen-go-grpc) module=google.golang.org/grpc/cmd/protoc-gen-go-grpc package=$module ;;
golangci-lint) module=github.com/golangci/golangci-lint/v2 package=$module/cmd/golangci-lint ;;
gotestsum) module=gotest.tools/gotestsum package=$module ;;
nats-server) module=github.com/nats-io/nats-server/v2 package=$module ;;
*)
	echo "tools/tool.sh: no tool is called $name; see the tool block of tools/go.mod" >&2
	exit 2
	;;
esac

# Read from the file, since asking the go command costs a second and more.
version=$(awk -v m="$module" '$1 == m || ($1 == "require" && $2 == m) { for (i = 1; i < NF; i++) if ($i == m) print $(i + 1) }' "$here/go.mod")
if [ -z "$version" ]; then
	echo "tools/tool.sh: tools/go.mod does not name $module" >&2
	exit 1
fi

dir=$cache/$name@$version-$(go env GOVERSION)
if [ ! -x "$dir/$name" ]; then
	echo "building $name $version (once; buf and golangci-lint take some minutes)" >&2
	mkdir -p "$cache"
	new=$(mktemp -d "$cache/new.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	# At low priority, because tests that run meanwhile wait for deadlines. Without -trimpath, so that what the tests
	# compile of the standard library is shared.
	nice -n 15 go -C "$here" build -o "$new/$name" "$package" >&2
	mkdir -p "$dir"
	mv -f "$new/$name" "$dir/$name" # whole or not at all, also when two build at once
fi
(cd "$dir" && echo "$PWD/$name")
