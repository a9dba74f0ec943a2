#!/usr/bin/env bash
# mdbook.sh OUT: the program that makes the book, from crates.io. Built once per machine, kept by its version.
#
# Without what watches and serves; quick to build (85 s of a processor) rather than to run: it has fifty pages to do, in 4 s.
set -euo pipefail
out=$(realpath -m "${1:?usage: mdbook.sh OUT}") version=0.5.4
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/testbed/cache.sh
entry=mdbook/$(key scripts/mdbook.sh)
[ "$(cat "$out.version" 2>/dev/null)" = "$entry" ] && [ -x "$out" ] && exit 0
if ! cached "$entry" "$out"; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  # From outside the tree: this one's .cargo/config.toml is for its own programs.
  (cd "$folder" && env -u RUSTC_WORKSPACE_WRAPPER -u CLIPPY_ARGS CARGO_NET_RETRY=5 CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$folder/target" \
    "${CARGO:-cargo}" install --quiet --debug --locked --version "=$version" --no-default-features --features search --root "$folder" mdbook) ||
    { echo "mdbook.sh: mdBook $version was not built: is there a network, and does crates.io answer?" >&2; exit 1; }
  mkdir -p "$(dirname "$out")"
  cp "$folder/bin/mdbook" "$out.$$" && mv "$out.$$" "$out"
  keep "$entry" "$out"
fi
chmod 755 "$out"
echo "$entry" >"$out.version"
