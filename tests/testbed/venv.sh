#!/usr/bin/env bash
# venv.sh DIR: makes DIR/venv, a Python with the driver of Cassandra. Several may ask for it at one time.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(mkdir -p "${1:?usage: venv.sh DIR}" && cd "$1" && pwd)
venv=$dir/venv
exec 9>"$dir/venv.lock"
flock 9
[ ! -f "$venv/.complete" ] || exit 0
# Debian keeps what makes an environment in a package of its own.
python3 -c 'import ensurepip' 2>/dev/null || "$root/scripts/need.sh" python3-venv=python3-venv
rm -rf "$venv"
python3 -m venv "$venv"
"$root/scripts/fetch.sh" "$venv/bin/pip" install --quiet --disable-pip-version-check cassandra-driver==3.30.1
touch "$venv/.complete"
