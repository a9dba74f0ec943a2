#!/usr/bin/env bash
# run.sh DIR JOB ...: starts a test bed out of DIR, loads the images, runs the jobs, ends what it started. Jobs joined by + run beside
# each other. The bed lies in DIR/beds, in a network and a mount namespace of its own: several run side by side, and this machine's
# network is not touched. KEEP=1: it is that of DIR itself, in this machine's network, and left running for a look.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
usage='usage: run.sh DIR JOB ...'
dir=$(cd "${1:?$usage}" && pwd); : "${2:?$usage}"

# Paths outside of a bed that its kubelet, and the programs that the kubelet calls, use as if there were no other kubelet.
ALONE=(/run/netns /var/lib/cni /var/lib/kubelet /var/log/pods /var/log/containers)

if [ -n "${KEEP:-}" ]; then
  "$root/tests/e2e/prepare.sh" "$dir"
elif [ -z "${NAVIGATOR_BED_ALONE:-}" ]; then
  "$root/tests/e2e/prepare.sh" "$dir"
  bed=$dir/beds/${2%%+*}
  rm -rf "$bed" && mkdir -p "$bed" && ln -st "$bed" "$dir"/{bin,images,venv,pause.tar}
  shift
  NAVIGATOR_BED_ALONE=yes exec unshare --net --mount --propagation private "$0" "$bed" "$@"
else
  for path in "${ALONE[@]}"; do
    mkdir -p "$path" "$dir/alone$path"
    mount --bind "$dir/alone$path" "$path"
  done
  ip link set lo up
  # A kubelet ends every container in its control group that it does not know, so each bed has a group of its own.
  export TESTBED_CGROUP=/testbed-$$
fi
shift
export NAVIGATOR_TESTBED=$dir

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
  # The jobs ran beside each other; their logs are printed one after the other.
  for one in "${running[@]}"; do
    wait "${one#*=}" || failed=yes
    echo "=== ${one%=*}"; cat "$dir/run/${one%=*}.log"
  done
  [ -z "$failed" ]
done
