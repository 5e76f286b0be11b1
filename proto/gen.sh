#!/usr/bin/env bash
# Generates the Go code of every .proto below this folder, beside its source.
# The plugins have the versions that go.mod pins and protoc is held to one
# version, because all three write theirs into the code. The code is committed:
# a second run must leave the tree as it was.
set -euo pipefail

want_protoc="libprotoc 3.21.12"

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

if ! command -v protoc >/dev/null; then
  echo "proto/gen.sh: protoc is missing; install the Debian package protobuf-compiler" >&2
  exit 1
fi
if [[ "$(protoc --version)" != "$want_protoc" ]]; then
  echo "proto/gen.sh: need $want_protoc (Debian package protobuf-compiler)," \
    "found $(protoc --version)" >&2
  exit 1
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/out"
go build -o "$work/bin" \
  google.golang.org/protobuf/cmd/protoc-gen-go \
  google.golang.org/grpc/cmd/protoc-gen-go-grpc

mapfile -t sources < <(find proto -name '*.proto' -printf '%P\n' | LC_ALL=C sort)

PATH="$work/bin:$PATH" protoc -I proto \
  --go_out="$work/out" --go_opt=module=trivet \
  --go-grpc_out="$work/out" --go-grpc_opt=module=trivet \
  "${sources[@]}"

# Only a run that went well touches the tree, and what it no longer produces
# goes away with the .proto that it came from.
while IFS= read -r old; do
  [[ -e "$work/out/$old" ]] || rm -- "$old"
done < <(find proto -name '*.pb.go')
cp -R "$work/out/proto" .
