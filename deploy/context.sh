#!/usr/bin/env bash
# Copies the operator's and the developer's certificates out of the composition
# that is up, and writes a context file for commands on this machine. It takes
# the folder for them; $COMPOSE is the compose command, and the ports are those
# of docker-compose.yml.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-.trivet/compose}
if [ -z "${COMPOSE:-}" ]; then
  COMPOSE=docker-compose
  if docker compose version >/dev/null 2>&1; then COMPOSE='docker compose'; fi
fi
# On purpose several words: it may be "docker compose".
# shellcheck disable=SC2086
id=$($COMPOSE ps -aq pki)
if [ -z "$id" ]; then
  echo 'the composition is not up: docker compose up -d' >&2
  exit 1
fi
umask 077
mkdir -p "$dir"
for bundle in operators/operator clients/developer; do
  name=${bundle#*/}
  rm -rf "${dir:?}/$name"
  docker cp "$id:/pki/$bundle" "$dir/$name" >/dev/null
done
servers="[\"127.0.0.1:${TRIVET_PORT_1:-7421}\", \"127.0.0.1:${TRIVET_PORT_2:-7422}\", \"127.0.0.1:${TRIVET_PORT_3:-7423}\"]"
cat >"$dir/context.yaml" <<EOF
currentContext: developer
contexts:
  - {name: developer, servers: $servers, bundle: developer, namespace: default}
  - {name: operator, servers: $servers, bundle: operator}
EOF
printf 'export TRIVET_CONFIG=%s\n' "$(cd "$dir" && pwd)/context.yaml"
