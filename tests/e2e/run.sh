#!/usr/bin/env bash
# run.sh DIR [JOB ...]: starts the test bed of DIR, loads the images, runs the jobs (all of them when none is named),
# ends what it started. KEEP=1 leaves the bed running for a look.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(cd "${1:?usage: run.sh DIR [JOB ...]}" && pwd); shift
[ $# -gt 0 ] || set -- main_job elasticsearch_job upgrade_job api_job kill_run etcd_job
cassandra=5.0.6 elasticsearch=7.17.29
export NAVIGATOR_TESTBED=$dir

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

begun=$SECONDS
"$root/tests/testbed/down.sh" "$dir" --clean >/dev/null 2>&1 || true
[ -n "${KEEP:-}" ] || trap '"$root/tests/testbed/down.sh" "$dir" --clean || true' EXIT
"$root/tests/testbed/up.sh" "$dir"
for image in "$root/bin/navigator-image.tar" "$dir/images/cassandra-$cassandra.tar" "$dir/images/elasticsearch-$elasticsearch.tar"; do
  ctr -a "$dir/run/containerd.sock" -n k8s.io images import "$image" >/dev/null
done
echo "bed is up with its images after $((SECONDS - begun)) s"
for job in "$@"; do
  echo "=== $job"
  "$venv/bin/python" "$root/tests/e2e/$job.py"
done
