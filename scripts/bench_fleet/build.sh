#!/usr/bin/env bash
# build.sh [DIR]: vets and builds the crowd of `make bench-fleet` into DIR/bin/crowd, unless another checkout did (cache.sh). Needs go >= 1.24,
# and no module of others.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "${1:-.testbed}/bin" && cd "${1:-.testbed}" && pwd)
program=$dir/bin/crowd
export CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath"
. "$here/../../tests/testbed/cache.sh"
key=$(key "$here"/*.go "$here/go.mod" "$(go version)")
# The program that is there may have been built of other sources.
[ "$(cat "$program.key" 2>/dev/null)" != "$key" ] || exit 0
if ! cached "testbed/$key/crowd" "$program"; then
  cd "$here"
  odd=$(gofmt -l .)
  [ -z "$odd" ] || { echo "not as gofmt writes it: $odd" >&2; exit 1; }
  go vet .
  go build -ldflags "-s -w" -o "$program" .
  keep "testbed/$key/crowd" "$program"
fi
echo "$key" >"$program.key"
