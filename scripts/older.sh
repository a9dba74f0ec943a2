#!/usr/bin/env bash
# older.sh OUT: the program of an older commit, to upgrade from. Built once per machine, kept by its hash.
#
# In the dev profile, with a test: its dependencies are those that the tests have compiled already, and a fat link of a release
# would cost minutes for a program that is only to be as old.
set -euo pipefail
out=$(realpath -m "${1:?usage: older.sh OUT}")
# The last commit in which clusters were owners of what is made for them: a user who has not upgraded since runs it.
commit=598c51ad52c925d694e91a523b577483bcdf27d1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
. tests/testbed/cache.sh
entry=older/$commit
[ "$(cat "$out.commit" 2>/dev/null)" = "$commit" ] && [ -x "$out" ] && exit 0
if ! cached "$entry" "$out"; then
  git cat-file -e "$commit^{commit}" 2>/dev/null ||
    { echo "older.sh: commit $commit is not here: git fetch --unshallow" >&2; exit 1; }
  # The source lies outside of this tree, or cargo would read this tree's .cargo/config.toml as well.
  source=$(mktemp -d)
  trap 'rm -rf "$source"' EXIT
  git archive "$commit" | tar -x -C "$source"
  mkdir "$source/.cache" && cp .cache/*.jar "$source/.cache"
  target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
  (cd "$source" && env -u RUSTC_WORKSPACE_WRAPPER -u CLIPPY_ARGS CARGO_BUILD_BUILD_DIR="$target" CARGO_TARGET_DIR="$source/target" \
    "${CARGO:-cargo}" build --locked --bin navigator --test fuzz)
  mkdir -p "$(dirname "$out")"
  strip -o "$out" "$source/target/x86_64-unknown-linux-gnu/debug/navigator"
  keep "$entry" "$out"
fi
chmod 755 "$out"
echo "$commit" >"$out.commit"
