#!/usr/bin/env bash
# prepare.sh DIR: makes what the jobs need beside the test bed and our own image: their Python, the databases' images.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(mkdir -p "${1:?usage: prepare.sh DIR}" && cd "$1" && pwd)
cassandra=5.0.6 elasticsearch=7.17.29

venv=$dir/venv
if [ ! -f "$venv/.complete" ]; then
  # Debian keeps what makes an environment in a package of its own.
  python3 -c 'import ensurepip' 2>/dev/null || "$root/scripts/need.sh" python3-venv=python3-venv
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check cassandra-driver==3.30.1
  touch "$venv/.complete"
fi
"$root/tests/testbed/database-image.sh" cassandra "$cassandra" "$dir"
"$root/tests/testbed/database-image.sh" elasticsearch "$elasticsearch" "$dir"
