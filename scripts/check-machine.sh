#!/usr/bin/env bash
# check-machine.sh [run|ci]: says in one line what keeps this machine from building Navigator; with `run` from running its databases as well,
# and with `ci` from building Kubernetes, too.
# It starts and changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stop() { echo "check-machine.sh: $*" >&2; exit 1; }

[ "$(uname -sm)" = "Linux x86_64" ] ||
  stop "Navigator builds and runs on Linux on x86-64 alone, and this is $(uname -sm): use a virtual machine"

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
cargo=${CARGO:-cargo}
command -v "$cargo" >/dev/null || stop "no $cargo: install Rust $wanted or later (https://rustup.rs)"
# (rustup asks which toolchain is meant where none was chosen)
found=$(rustc --version 2>/dev/null | cut -d' ' -f2) || stop "rustc does not start: install Rust $wanted or later (https://rustup.rs)"
[ "$(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n1)" = "$wanted" ] ||
  stop "Rust is $found, and Navigator needs $wanted or later: rustup update, or https://rustup.rs"

if [ "${1:-}" = run ]; then
  [[ ${NODES:-3} =~ ^[1-9]$ ]] || stop "NODES is a number from 1 to 9, not '$NODES'"
fi
if [ -n "${1:-}" ]; then
  command -v java >/dev/null || stop "no java: install a JDK 17 (Debian: apt-get install default-jdk-headless)"
  java=$(java -version 2>&1 | sed -n 's/.* version "\(1\.\)\?\([0-9]*\).*/\2/p')
  [ "${java:-0}" -ge 11 ] || stop "java is version ${java:-unknown}, and Cassandra 5.0 runs on 11 and 17: install 17 (Debian: apt-get install default-jdk-headless)"
fi
if [ "${1:-}" = ci ]; then
  # What Kubernetes 1.34 is built with.
  command -v go >/dev/null || stop "no go: install Go 1.24 or later (https://go.dev/dl)"
  found=$(go env GOVERSION) found=${found#go}
  [ "$(printf '1.24\n%s\n' "$found" | sort -V | head -n1)" = 1.24 ] || stop "Go is $found, and the tests need 1.24 or later: https://go.dev/dl"
  # Databases out of the test bed run as users of their own where this is root.
  if [ "$(id -u)" = 0 ]; then
    folder=$(realpath -m "${NAVIGATOR_TESTBED:-.testbed}")
    while [ "$folder" != / ]; do
      [[ ! -e $folder || $(stat -c %A "$folder") = *[xt] ]] ||
        stop "$folder is closed to other users, and databases of the tests run as such: clone elsewhere (/srv, say), or chmod o+x $folder"
      folder=$(dirname "$folder")
    done
  fi
fi

# What the compiler held at most was 4.2 GB (docs/developing.md); a program that is built already needs no more of it.
memory=$(awk '/^(MemAvailable|SwapFree):/ {sum += $2} END {print int(sum / 1048576)}' "${MEMINFO:-/proc/meminfo}")
[ "$memory" -ge 4 ] || stop "$memory GiB of memory are free, and the compiler needs 4: end other programs, or add swap"
disk=$(df -Pk . | awk 'END {print int($4 / 1048576)}')
[ "$disk" -ge 5 ] || stop "$disk GiB of disk are free in $PWD, and what is compiled needs 5: make room, or clone elsewhere"
