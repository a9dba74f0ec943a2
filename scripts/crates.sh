#!/usr/bin/env bash
# crates.sh seed|keep PROFILE: the compiled crates that ours depends on, out of the machine's cache (tests/testbed/cache.sh) into
# target, and back: no crate is compiled twice on one machine. PROFILE is dev or release.
#
# They are copied, never shared, so checkouts beside each other cannot meet. Of our own crates nothing is kept, so nothing stale can
# pass; and what is seeded cargo judges as if it had been compiled here. An entry that is damaged is removed and made again; one that
# has fewer crates than target (`make run` needs fewer than the tests) is replaced.
set -euo pipefail
shopt -s extglob
usage='usage: crates.sh seed|keep dev|release'
verb=${1:?$usage} folder=${2:?$usage}
[ "$folder" != dev ] || folder=debug
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/testbed/cache.sh
# A target folder that a person chose is left alone: nothing is copied into it or out of it.
[ -z "${CARGO_TARGET_DIR:-}${CARGO_BUILD_TARGET_DIR:-}${CARGO_BUILD_BUILD_DIR:-}" ] || exit 0

# The key of an entry has all by which cargo decides whether a crate must be compiled again; the folder of the sources, too.
flags=$(env | grep -E '^(RUSTFLAGS|CARGO_(BUILD|ENCODED|PROFILE|TARGET)_\w+|CC|CFLAGS)=' | sort || true)
asked=$(awk '/^\[/ {on = /dependencies|features|profile/} on' Cargo.toml)
key=$(key "$(rustc -vV)" "$folder" "$asked" Cargo.lock .cargo/config.toml "$flags" "${CARGO_HOME:-$HOME/.cargo}")
entry=$cache/crates/$key
target=$(sed -n 's/^target = "\(.*\)"/\1/p' .cargo/config.toml)
places=("$folder" "$target/$folder") # what runs while compiling, and what is compiled

seed() {
  local place part=target/.crates
  mkdir -p "target/$target" && exec 9>>target/.crates.lock && flock 9
  for place in "${places[@]}"; do [ ! -e "target/$place" ] || exit 0; done
  if [ -d "$entry" ]; then
    rm -rf "$part" && mkdir "$part"
    if (cd "$entry" && b2sum --check --status sum) && tar -xf "$entry/crates.tar" -C "$part"; then
      touch "$entry"
      for place in "${places[@]}"; do mv "$part/$place" "target/$place"; done
      echo "crates.sh: $(find "$entry" -name crates.tar -printf '%kK') of compiled crates from $entry"
    else
      echo "crates.sh: $entry was damaged and is removed; its crates are compiled anew" >&2
      rm -rf "$entry"
    fi
    rm -rf "$part"
  fi
  # From here on, whatever is compiled in target belongs to this entry; `keep` looks at that.
  echo "$key" >"target/.crates-$folder"
}

keep() {
  local place hash crates=() ours=(--exclude='*navigator*')
  part=$entry.$$
  [ "$(cat "target/.crates-$folder" 2>/dev/null)" = "$key" ] || exit 0
  shopt -s nullglob
  for place in "${places[@]}"; do crates+=("target/$place/.fingerprint/"!(navigator*)); done
  [ ${#crates[@]} -gt "$(cat "$entry/count" 2>/dev/null || echo 0)" ] || exit 0
  for place in "${places[@]}"; do
    # Cargo names each target's artefacts by a hash, also targets without `navigator` in their name; the
    # folders of our fingerprints have these hashes.
    for hash in "target/$place/.fingerprint/navigator-"*; do ours+=("--exclude=*-${hash##*-}" "--exclude=*-${hash##*-}.*"); done
  done
  mkdir -p "$part"
  trap 'rm -rf "$part"' EXIT
  # Fingerprints first: cargo writes a crate's fingerprint when the crate is compiled, so each crate whose fingerprint is in the archive is
  # whole there, also when another cargo compiles meanwhile. tar ends with 1 when files change while it reads them.
  tar --warning=no-file-changed -cf "$part/crates.tar" -C target "${ours[@]}" {"$folder","$target/$folder"}/{.fingerprint,build,deps} || [ $? = 1 ]
  (cd "$part" && b2sum crates.tar >sum)
  echo ${#crates[@]} >"$part/count"
  rm -rf "$entry"
  mv -T "$part" "$entry" 2>/dev/null || true # another checkout was quicker
  find "$cache/crates" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
}

case $verb in seed | keep) "$verb" ;; *) echo "$usage" >&2; exit 64 ;; esac
