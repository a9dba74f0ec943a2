#!/usr/bin/env bash
# promtool.sh OUT: Prometheus' own checker of rules, from Go modules at a pinned version. About 3 minutes on 2 cores from nothing;
# what another checkout built is taken from the cache (tests/testbed/cache.sh).
set -euo pipefail
out=$(realpath -m "${1:?usage: promtool.sh OUT}")
version=v0.313.5 # of Prometheus 3.13
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tests/testbed/cache.sh"
entry=promtool/$(key "${BASH_SOURCE[0]}" "$(go version)")
[ -x "$out" ] && [ "$(cat "$out.entry" 2>/dev/null)" = "$entry" ] && exit 0
if ! cached "$entry" "$out"; then
  source=$(mktemp -d)
  trap 'rm -rf "$source"' EXIT
  mkdir -p "$(dirname "$out")"
  cd "$source"
  export CGO_ENABLED=0 GOFLAGS=-mod=mod
  { go mod init promtool && go get "github.com/prometheus/prometheus/cmd/promtool@$version"; } >log 2>&1 || { cat log >&2; exit 1; }
  # Service discovery is most of it by weight, and rules need none.
  go build -trimpath -tags remove_all_sd -ldflags '-s -w' -o "$out" github.com/prometheus/prometheus/cmd/promtool
  keep "$entry" "$out"
fi
chmod 755 "$out"
echo "$entry" >"$out.entry"
