#!/usr/bin/env bash
# promtool.sh debian|newest OUT: Prometheus' own checker of rules. `debian` is the program out of Debian's package, which is not
# installed: its server would be started. `newest` is built from Go modules at a pinned version, about 3 minutes on 2 cores; what
# another checkout built is taken from the cache (tests/testbed/cache.sh).
set -euo pipefail
usage='usage: promtool.sh debian|newest OUT'
which=${1:?$usage} out=$(realpath -m "${2:?$usage}")
version=v0.313.5 # of Prometheus 3.13
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tests/testbed/cache.sh"

debian() {
  # Where there is no Debian, people have it on their path.
  command -v apt-get >/dev/null || { cp "$(command -v promtool || { echo "please install: promtool" >&2; exit 1; })" "$out"; return; }
  "$root/scripts/need.sh" --download prometheus
  dpkg -x prometheus_*.deb . && cp usr/bin/promtool "$out"
}

newest() {
  export CGO_ENABLED=0 GOFLAGS=-mod=mod
  go mod init promtool >log 2>&1 || { cat log >&2; exit 1; }
  "$root/scripts/fetch.sh" go get "github.com/prometheus/prometheus/cmd/promtool@$version"
  # Service discovery is most of it by weight, and rules need none.
  go build -trimpath -tags remove_all_sd -ldflags '-s -w' -o "$out" github.com/prometheus/prometheus/cmd/promtool
}

case $which in
debian) made=$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release) ;;
newest) made=$(go version) ;;
*) echo "$usage" >&2; exit 64 ;;
esac
entry=promtool/$(key "${BASH_SOURCE[0]}" "$which" "$made")
[ -x "$out" ] && [ "$(cat "$out.entry" 2>/dev/null)" = "$entry" ] && exit 0
if ! cached "$entry" "$out"; then
  mkdir -p "$(dirname "$out")"
  source=$(mktemp -d)
  trap 'rm -rf "$source"' EXIT
  chmod 755 "$source" # apt fetches as a user of its own
  cd "$source" && "$which"
  keep "$entry" "$out"
fi
chmod 755 "$out"
echo "$entry" >"$out.entry"
