#!/usr/bin/env bash
# quickstart.sh [NAVIGATOR]: types the commands of docs/quickstart.md, as somebody does who has just cloned the project: in a clean clone
# of this commit, in folders of its own. Needs NAVIGATOR_TESTBED with bin/kubectl. Leaves nothing running and nothing behind.
# NAVIGATOR: a program that is built already. Then what `make run` does with the one that it builds is done with this one, and nothing is compiled.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bed=$(cd "${NAVIGATOR_TESTBED:-$root/.testbed}" && pwd)
built=${1:+$(realpath "$1")} place=$(mktemp -d) clone=$place/clone
# Databases run as users of their own where this is root.
chmod 755 "$place"
finish() {
  local ended=$?
  if [ $ended != 0 ]; then
    tail -n 40 "$place/local/daemon.log" "$place"/local/logs/*/*/*.log 2>/dev/null | cut -c 1-300 || true
    # Last, since a reader may see the end only.
    tail -n 60 "$place/guide.log" || true
  fi
  [ ! -x "$clone/bin/navigator" ] || "$clone/bin/navigator" local down --delete-data || true
  rm -rf "$place"
  exit $ended
}
trap finish EXIT
git clone --quiet "$root" "$clone"
export NAVIGATOR_LOCAL_DIR=$place/local NAVIGATOR_LOCAL_ADDRESS=127.0.0.1:0 NAVIGATOR_HOMES=$place/homes
typed=()
if [ -n "$built" ]; then
  install -D -m 755 "$built" "$clone/bin/navigator"
  grep -q '^	scripts/run.sh bin/navigator$' "$clone/Makefile" || { echo "quickstart.sh: \`make run\` does not end with: scripts/run.sh bin/navigator" >&2; exit 1; }
  typed=(--instead "make run=scripts/run.sh bin/navigator")
fi
PATH=$bed/bin:$PATH "$clone/tests/e2e/guide.py" "${typed[@]}" docs/quickstart.md 2>&1 | tee "$place/guide.log"
