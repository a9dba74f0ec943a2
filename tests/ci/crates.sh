#!/usr/bin/env bash
# crates.sh: the cache of compiled crates (scripts/crates.sh) spares compiling them again, and hides nothing: a small project with the
# scripts, the settings and a few crates of this one stands for it, and each checkout is a copy of that. Its crates must be fetched.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export NAVIGATOR_CACHE=$place/cache
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR CARGO_BUILD_BUILD_DIR RUSTC_WORKSPACE_WRAPPER
say() { echo "[$SECONDS s] $*"; }
fail() { tail -n 30 "$place"/*.log; say "FAILED: $*"; exit 1; }

project=$place/project
mkdir -p "$project"/{.cargo,scripts,src,tests/testbed}
cp "$root/.cargo/config.toml" "$project/.cargo"
cp "$root/scripts/crates.sh" "$project/scripts"
cp "$root/tests/testbed/cache.sh" "$project/tests/testbed"
version() { sed -n "/^name = \"$1\"/{n;s/^version = \"\(.*\)\"/\1/p}" "$root/Cargo.lock" | head -n 1; }
cat >"$project/Cargo.toml" <<X
[package]
name = "navigator"
version = "0.1.0"
edition = "2024"

[dependencies]
itoa = "=$(version itoa)"
anyhow = "=$(version anyhow)"

[dev-dependencies]
fastrand = "=$(version fastrand)"
X
echo 'fn main() { println!("cargo::rerun-if-changed=build.rs"); }' >"$project/build.rs"
echo 'pub fn two() -> String { itoa::Buffer::new().format(2).to_owned() }' >"$project/src/lib.rs"
echo 'fn main() -> anyhow::Result<()> { println!("{}", navigator::two()); Ok(()) }' >"$project/src/main.rs"
echo '#[test] fn two() { fastrand::bool(); assert_eq!(navigator::two(), "2"); }' >"$project/tests/two.rs"
(cd "$project" && cargo generate-lockfile --offline) >"$place/lock.log" 2>&1 || fail "crates are not fetched: cargo fetch"

checkout() { rm -rf "${place:?}/$1" && cp -a "$project" "$place/$1"; }
# ci NAME: what CI does with a checkout, as far as crates go.
ci() {
  (cd "$place/$1" && scripts/crates.sh seed dev && cargo test --offline --locked && scripts/crates.sh keep dev) >"$place/$1.log" 2>&1 </dev/null
}
passes() { ci "$1" || fail "$1 does not pass"; }
fails() { if ci "$1"; then fail "$1 passes"; fi; }
compiled() { grep -c "Compiling $2 " "$place/$1.log" || true; }
entries() { find "$NAVIGATOR_CACHE/crates" -name crates.tar | wc -l; }

checkout first
passes first
[ "$(compiled first itoa) $(entries)" = "1 1" ] || fail "the first run does not compile its crates and keep them"
tar -tf "$NAVIGATOR_CACHE"/crates/*/crates.tar >"$place/names.log"
! grep -E 'navigator|/two-' "$place/names.log" || fail "something of our own crate is kept"
say "a first run compiles crates and keeps them, and nothing of our own"

checkout second
passes second
[ "$(compiled second itoa) $(compiled second anyhow) $(compiled second navigator)" = "0 0 1" ] || fail "the second run compiles other crates than our own"
say "a second one compiles our own crate alone"

checkout source
sed -i 's/format(2)/format(3)/' "$place/source/src/lib.rs"
# The changed file gets the time of the compiled one, which cargo might take for no change: its fault must be found all the same.
touch -r "$place/first/src/lib.rs" "$place/source/src/lib.rs"
fails source
checkout test
sed -i 's/"2"/"4"/' "$place/test/tests/two.rs"
touch -r "$place/first/tests/two.rs" "$place/test/tests/two.rs"
fails test
say "a fault in the source fails, and one in a test"

checkout locked
sed -i 's/^checksum = "../checksum = "zz/' "$place/locked/Cargo.lock"
fails locked
grep -q checksum "$place/locked.log" || fail "it is not for the checksum that it fails"
[ ! -e "$place/locked/target/debug/deps" ] || fail "crates of another lock file were brought"
say "a crate that is not what Cargo.lock says fails"

checkout damaged
printf x | dd of="$(echo "$NAVIGATOR_CACHE"/crates/*/crates.tar)" bs=1 seek=20000 conv=notrunc status=none
passes damaged
grep -q 'was damaged and is removed' "$place/damaged.log" || fail "a damaged entry is not noticed"
[ "$(compiled damaged itoa) $(entries)" = "1 1" ] || fail "a damaged entry is not made anew"
checkout mended
passes mended
[ "$(compiled mended itoa)" = 0 ] || fail "what was made anew is not used"
say "a damaged entry is noticed, and made anew"

rm -r "$NAVIGATOR_CACHE"
checkout built
(cd "$place/built" && scripts/crates.sh seed dev && cargo build --offline --locked && scripts/crates.sh keep dev) >"$place/built.log" 2>&1 ||
  fail "a build does not pass"
checkout tested
passes tested
[ "$(compiled tested itoa) $(compiled tested fastrand)" = "0 1" ] || fail "tests do not use what a build compiled"
checkout again
passes again
[ "$(compiled again itoa) $(compiled again fastrand) $(entries)" = "0 0 1" ] || fail "what tests need beside that is not kept"
say "a build and the tests share what they compile"

rm -r "$NAVIGATOR_CACHE"
checkout left
checkout right
sed -i 's/format(2)/format(3)/' "$place/right/src/lib.rs"
ci left & left=$!
ci right & right=$!
wait $left || fail "a good checkout beside a bad one does not pass"
if wait $right; then fail "a bad checkout beside a good one passes"; fi
checkout after
passes after
[ "$(compiled after itoa) $(entries)" = "0 1" ] || fail "two at once leave no entry to use"
say "two checkouts at once do not meet, and leave one entry"

checkout own
(cd "$place/own" && export CARGO_TARGET_DIR=$place/elsewhere && scripts/crates.sh seed dev && scripts/crates.sh keep dev)
[ ! -e "$place/elsewhere" ] && [ ! -e "$place/own/target" ] || fail "a folder that a person named is filled"
say "a folder that a person named is left alone"
