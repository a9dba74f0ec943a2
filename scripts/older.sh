#!/usr/bin/env bash
# older.sh OUT: the program of an older commit, to upgrade from. Built once per machine, kept by its hash, in a folder of its own: whoever
# compiles in this checkout meanwhile does not wait for it. A second one on the machine waits for the first, and takes what it built.
#
# In the dev profile, with a test: its dependencies are those that the tests of its time compiled, of which the cache has most, and a fat link of
# a release would cost minutes for a program that is only to be as old.
set -euo pipefail
out=$(realpath -m "${1:?usage: older.sh OUT}")
# The last commit whose volumes do not name their cluster by its uid.
commit=8bf7d128f6df4129233a5f5d00ef49c2ea09b543
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
. tests/testbed/cache.sh
entry=older/$commit
[ "$(cat "$out.commit" 2>/dev/null)" = "$commit" ] && [ -x "$out" ] && exit 0
if ! cached "$entry" "$out"; then
  git cat-file -e "$commit^{commit}" 2>/dev/null ||
    { echo "older.sh: commit $commit is not here: git fetch --unshallow" >&2; exit 1; }
  mkdir -p "$cache/older" && exec 9>>"$cache/older/lock" && flock 9
fi
if ! cached "$entry" "$out"; then
  # A run that was killed left its folder.
  source=$cache/older/source
  rm -rf "$source" && mkdir -p "$source/target"
  trap 'rm -rf "$source"' EXIT
  git archive "$commit" | tar -x -C "$source"
  # (of the same version; it has another place since)
  mkdir "$source/.cache" && cp .cache/agent/*.jar "$source/.cache"
  # Crates of this checkout, of which most are those of then; cargo judges which.
  crates=$(ls -td "$cache"/crates/*/ 2>/dev/null | head -n 1)
  [ -z "$crates" ] || ! (cd "$crates" && b2sum --check --status sum) || tar -xf "$crates/crates.tar" -C "$source/target"
  (cd "$source" && env -u RUSTC_WORKSPACE_WRAPPER -u CLIPPY_ARGS CARGO_TARGET_DIR="$source/target" \
    "${CARGO:-cargo}" build --locked --bin navigator --test fuzz)
  mkdir -p "$(dirname "$out")"
  strip -o "$out.$$" "$source/target/x86_64-unknown-linux-gnu/debug/navigator" && mv "$out.$$" "$out"
  keep "$entry" "$out"
fi
chmod 755 "$out"
echo "$commit" >"$out.commit"
