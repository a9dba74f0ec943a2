#!/usr/bin/env bash
# testbed.sh: where the registry lacks a module, a script that builds a part of the test bed says so and ends; it builds nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go=$(command -v go) || { echo "testbed.sh: please install: go" >&2; exit 1; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/bin"
cat >"$place/bin/go" <<X
#!/bin/sh
case "\$1 \$2" in version* | "mod init") exec "$go" "\$@" ;; esac
echo "\$*" >>"$place/requests"
echo "unknown revision" >&2
exit 1
X
chmod +x "$place/bin/go"

ends() { # SCRIPT [PROGRAM that is there already]
  local bed=$place/bed
  rm -rf "$bed" "$place/requests"
  [ -z "${2:-}" ] || install -D /bin/true "$bed/bin/$2"
  if PATH=$place/bin:$PATH NAVIGATOR_CACHE=$place/cache "tests/testbed/$1.sh" "$bed" >"$place/log" 2>&1; then
    echo "$1.sh ended well without a registry" >&2
    exit 1
  fi
  [ "$(wc -l <"$place/requests")" = 1 ] && grep -q "unknown revision" "$place/log" || {
    echo "$1.sh sent these requests, and wrote:" >&2
    cat "$place/requests" "$place/log" >&2
    exit 1
  }
}
ends build
ends build etcd
for script in helm kubemark machine sample; do ends $script; done
echo "testbed.sh: six builds ended where the registry lacks something"
