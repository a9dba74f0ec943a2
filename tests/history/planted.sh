#!/usr/bin/env bash
# planted.sh [NUMBER …]: does `make test-history` find bugs? planted.patch has six of them, one promise broken by each.
# It is applied to a worktree of HEAD and built once; then, bug by bug, the histories of CI are run one after another
# until one is wrong. Prints which promises were seen broken, and in which history; fails when a bug is not found.
# Two minutes, and the build. It shares the folder of what is built, so nothing else is to be built beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD tree=$(mktemp -d)/navigator # not below this folder, whose settings of cargo would be added to its own
built=${CARGO_TARGET_DIR:-$root/target}/x86_64-unknown-linux-gnu/debug
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target} NAVIGATOR_TESTBED=${NAVIGATOR_TESTBED:-$root/.testbed}
unset RUSTC_WORKSPACE_WRAPPER

git worktree prune
git worktree add --quiet --detach "$tree" HEAD
trap 'rm -f "$built/planted" "$built/deps/planted"; git worktree remove --force "$tree"; rm -r "${tree%/*}"' EXIT
mkdir "$tree/.cache" && cp .cache/*.jar "$tree/.cache/" # `make deps` has made it
git -C "$tree" apply "$root/tests/history/planted.patch"
cd "$tree"
program=$(cargo test --no-run --test history 2>&1 | tee /dev/stderr | sed -n 's/.*(\(.*\/history-[0-9a-f]*\))$/\1/p')
case $program in /*) ;; *) program=$tree/$program ;; esac

# find BUG: one line of what was found, and its first words.
find() {
  local log=$root/.cache/planted-$1.log seed
  # The file lies beside the server's program, and beside this test's own program, which also runs as the server.
  echo "$1" | tee "$built/planted" >"$built/deps/planted"
  for seed in $(seq 1 10); do
    if ! HISTORY_SEED=$seed "$program" >"$log" 2>&1; then
      echo "bug $1: found in history $seed of 10: $(sed -n 's/^ *[0-9]* are wrong in all: //p' "$log")"
      sed -n '/^  WRONG/{p;q}' "$log" | cut -c 1-300
      return 0
    fi
  done
  echo "bug $1: NOT FOUND in 10 histories"
  return 1
}

missed=0
for bug in "${@:-1 2 3 4 5 6}"; do
  for one in $bug; do find "$one" || missed=1; done
done
exit $missed
