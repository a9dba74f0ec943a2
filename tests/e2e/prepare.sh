#!/usr/bin/env bash
# prepare.sh DIR: makes what the jobs need beside the test bed and our own image: their Python, the databases' images.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(mkdir -p "${1:?usage: prepare.sh DIR}" && cd "$1" && pwd)
cassandra=5.0.6 elasticsearch=7.17.29

"$root/tests/testbed/venv.sh" "$dir"
"$root/tests/testbed/database-image.sh" cassandra "$cassandra" "$dir"
"$root/tests/testbed/database-image.sh" elasticsearch "$elasticsearch" "$dir"
