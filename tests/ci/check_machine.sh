#!/usr/bin/env bash
# check_machine.sh: what keeps a machine from building or running Navigator is said in one line, which names what to do.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/bin"
program() { printf '#!/bin/sh\n%s\n' "$2" >"$place/bin/$1" && chmod +x "$place/bin/$1"; }
able() { # a machine that lacks nothing
  program uname 'echo Linux x86_64'
  program cargo 'exit 0'
  program rustc 'echo "rustc 1.95.0 (59807616e 2026-04-14)"'
  program java 'echo "openjdk version \"17.0.15\" 2025-04-15" >&2'
  program id 'echo 1000'
  program go 'echo go1.24.4'
  program df 'printf "Filesystem 1024-blocks Used Available Capacity Mounted\n/dev/x 1 1 9000000 1%% /\n"'
  printf 'MemAvailable: 5000000 kB\nSwapFree: 0 kB\n' >"$place/meminfo"
}
check() { env -u CARGO NODES="${NODES:-3}" PATH="$place/bin:/usr/bin:/bin" MEMINFO="$place/meminfo" "$root/scripts/check-machine.sh" "$@" 2>&1; }
refused() { # WORDS ARG ...: it fails, in one line that has these words
  local words=$1 said
  shift
  if said=$(check "$@"); then echo "not refused: $words" >&2; exit 1; fi
  [[ $(wc -l <<<"$said") = 1 && $said == *"$words"* ]] || { printf 'expected %s, was told:\n%s\n' "$words" "$said" >&2; exit 1; }
  able
}

able
check && check run && check ci || { echo "a machine that lacks nothing is refused" >&2; exit 1; }
program uname 'echo Linux aarch64'; refused "this is Linux aarch64: use a virtual machine"
program rustc 'echo "rustc 1.63.0"'; refused "Rust is 1.63.0, and Navigator needs 1.89 or later: rustup update"
program rustc 'exit 1'; refused "rustc does not start: install Rust 1.89 or later"
program java 'echo "openjdk version \"1.8.0_412\"" >&2'; refused "java is version 8, and Cassandra 5.0 runs on 11 and 17" run
program go 'echo go1.19.8'; refused "Go is 1.19.8, and the tests need 1.24 or later" ci
program id 'echo 0'; mkdir -m 700 "$place/closed"
check ci || { echo "root is refused where nothing is closed" >&2; exit 1; }
NAVIGATOR_TESTBED=bed check ci || { echo "a bed with a relative path is refused" >&2; exit 1; }
NAVIGATOR_TESTBED=$place/closed/clone/.testbed refused "$place/closed is closed to other users" ci
printf 'MemAvailable: 3000000 kB\nSwapFree: 1000000 kB\n' >"$place/meminfo"; refused "3 GiB of memory are free, and the compiler needs 4"
program df 'printf "Filesystem 1024-blocks Used Available Capacity Mounted\n/dev/x 1 1 4000000 1%% /\n"'; refused "3 GiB of disk are free"
NODES=0 refused "NODES is a number from 1 to 9, not '0'" run
# Without databases, no JDK is asked for.
program java 'exit 1'; check || { echo "a build is refused for its JDK" >&2; exit 1; }
