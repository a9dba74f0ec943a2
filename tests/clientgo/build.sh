#!/usr/bin/env bash
# build.sh [DIR]: builds client-go's tests into DIR/bin/clientgo.test, unless another checkout did (cache.sh). Needs go >= 1.24.
# `make full` runs `go vet` as well: it analyses all of client-go, which takes about 90 processor seconds where nothing is cached.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "${1:-.testbed}/bin" && cd "${1:-.testbed}" && pwd)
program=$dir/bin/clientgo.test
# The same flags as the test bed's programs have, so that go compiles no package twice.
export CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath"
. "$here/../testbed/cache.sh"
key=$(key "$here"/*.go "$here"/go.* "$(go version)")
# The program that is there may have been built of other sources.
[ "$(cat "$program.key" 2>/dev/null)" != "$key" ] || exit 0
if ! cached "testbed/$key/clientgo.test" "$program"; then
  cd "$here"
  odd=$(gofmt -l .)
  [ -z "$odd" ] || { echo "not as gofmt writes it: $odd" >&2; exit 1; }
  "$here/../../scripts/fetch.sh" go list -deps -test . >/dev/null
  go test -c -o "$program" .
  keep "testbed/$key/clientgo.test" "$program"
fi
echo "$key" >"$program.key"
