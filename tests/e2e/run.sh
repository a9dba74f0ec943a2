#!/usr/bin/env bash
# run.sh DIR [JOB ...]: starts the test bed of DIR, loads the images, runs the jobs (all of them when none is named),
# ends what it started. Jobs joined by + run beside each other. KEEP=1 leaves the bed running for a look.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(cd "${1:?usage: run.sh DIR [JOB ...]}" && pwd); shift
[ $# -gt 0 ] || set -- main_job+elasticsearch_job+deletion_job upgrade_job api_job install_job kill_run collector_job etcd_job
export NAVIGATOR_TESTBED=$dir
"$root/tests/e2e/prepare.sh" "$dir"

begun=$SECONDS
"$root/tests/testbed/down.sh" "$dir" --clean >/dev/null 2>&1 || true
[ -n "${KEEP:-}" ] || trap '"$root/tests/testbed/down.sh" "$dir" --clean || true' EXIT
"$root/tests/testbed/up.sh" "$dir"
for image in "$root/bin/navigator-image.tar" "$dir"/images/*.tar; do
  ctr -a "$dir/run/containerd.sock" -n k8s.io images import "$image" >/dev/null
done
echo "bed is up with its images after $((SECONDS - begun)) s"

job() { # NAME: runs it, and writes a line of CI's table
  local name=$1 begun=$SECONDS end=passed
  "$dir/venv/bin/python" "$root/tests/e2e/$name.py" || end=FAILED
  [ -z "${NAVIGATOR_TIMES:-}" ] ||
    printf '  %s\t%d\t%d\t\t%s\n' "$name" "$((${NAVIGATOR_BEGUN:-0} + begun))" $((SECONDS - begun)) $end >>"$NAVIGATOR_TIMES"
  [ $end = passed ]
}
for group in "$@"; do
  echo "=== $group"
  if [ "${group/+/}" = "$group" ]; then job "$group"; continue; fi
  running=() failed=
  for name in ${group//+/ }; do
    { job "$name" >"$dir/run/$name.log" 2>&1; } & running+=("$name=$!")
  done
  # Each log whole, one after the other.
  for one in "${running[@]}"; do
    wait "${one#*=}" || failed=yes
    echo "=== ${one%=*}"; cat "$dir/run/${one%=*}.log"
  done
  [ -z "$failed" ]
done
