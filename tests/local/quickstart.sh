#!/usr/bin/env bash
# quickstart.sh: types the commands of docs/quickstart.md, as somebody does who has just cloned the project: in a clean clone
# of this commit, in folders of its own. Needs NAVIGATOR_TESTBED with bin/kubectl. Leaves nothing running and nothing behind.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bed=$(cd "${NAVIGATOR_TESTBED:-$root/.testbed}" && pwd)
place=$(mktemp -d) clone=$place/clone
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
PATH=$bed/bin:$PATH "$clone/tests/e2e/guide.py" docs/quickstart.md 2>&1 | tee "$place/guide.log"
