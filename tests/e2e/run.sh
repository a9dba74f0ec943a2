#!/usr/bin/env bash
# run.sh DIR JOB ...: starts a test bed out of DIR, loads the images, runs the jobs, ends what it started. Jobs joined by + run beside
# each other; of those that a comma joins, one begins when the one before has ended: main_job+api_job,etcd_job. A job that fails keeps none
# from running; its logs stay in NAVIGATOR_LOGS, by default DIR/logs.
#
# The bed lies in DIR/beds, in namespaces of its own (network, mounts, processes): several run side by side, this machine's network is not
# touched, and all of a bed ends with its first process, also where that is killed. What a killed run left are files and an empty control
# group; the next run of the same bed removes them. KEEP=1: the bed is that of DIR itself, in this machine's network, and left running for
# a look.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
usage='usage: run.sh DIR JOB ...'
dir=$(cd "${1:?$usage}" && pwd); : "${2:?$usage}"

# Paths outside of a bed that its kubelet, and the programs that the kubelet calls, use as if there were no other kubelet.
ALONE=(/run/netns /var/lib/cni /var/lib/kubelet /var/log/pods /var/log/containers)

group_of() { echo "/testbed-$(sha256sum <<<"$1" | cut -c 1-12)"; }
forget() { # BED: what a run of it left
  find /sys/fs/cgroup/*"$(group_of "$1")" -depth -type d -exec rmdir {} + 2>/dev/null || true
  rm -rf "$1"
}

for name in $(tr '+,' '  ' <<<"${*:2}"); do
  [ -f "$root/tests/e2e/$name.py" ] || { echo "run.sh: there is no job $name" >&2; exit 64; }
done
if [ -z "${NAVIGATOR_BED_ALONE:-}" ]; then
  [ -f "$root/bin/navigator-image.tar" ] || { echo "run.sh: there is no bin/navigator-image.tar: make image PROFILE=dev" >&2; exit 1; }
  "$root/tests/e2e/prepare.sh" "$dir"
  export NAVIGATOR_LOGS=${NAVIGATOR_LOGS:-$dir/logs}
fi
if [ -n "${KEEP:-}" ]; then
  :
elif [ -z "${NAVIGATOR_BED_ALONE:-}" ]; then
  bed=$dir/beds/${2%%[+,]*}
  mkdir -p "$dir/beds"
  # Held by every process of the bed.
  exec 8>"$bed.lock"
  flock --timeout 60 8 || { echo "run.sh: another run has the bed $bed: wait until it has ended" >&2; exit 1; }
  for lock in "$dir"/beds/*.lock; do
    # (of runs that ended; those that were killed left files and a control group)
    (flock --nonblock 7 && forget "${lock%.lock}") 7>"$lock" || true
  done
  forget "$bed" && mkdir "$bed" && ln -st "$bed" "$dir"/{bin,images,venv,pause.tar}
  shift
  NAVIGATOR_BED_ALONE=yes exec unshare --net --mount --propagation private --pid --fork --kill-child=KILL --mount-proc "$0" "$bed" "$@"
else
  # A process without a handler is deaf to signals when it is the first of a namespace.
  trap 'exit 143' TERM INT
  for path in "${ALONE[@]}"; do
    mkdir -p "$path" "$dir/alone$path"
    mount --bind "$dir/alone$path" "$path"
  done
  ip link set lo up
  # A kubelet ends every container in its control group that it does not know, so each bed has a group of its own.
  TESTBED_CGROUP=$(group_of "$dir")
  export TESTBED_CGROUP
fi
shift
export NAVIGATOR_TESTBED=$dir

begun=$SECONDS failed=() waiting=()
for group; do IFS=+, read -ra names <<<"$group"; waiting+=("${names[@]}"); done

row() { # NAME BEGUN SECONDS PROCESSOR OUTCOME: a line of CI's table
  [ -z "${NAVIGATOR_TIMES:-}" ] ||
    printf '  %s\t%d\t%d\t%s\t%s\n' "$1" "$((${NAVIGATOR_BEGUN:-0} + $2))" "$3" "$4" "$5" >>"$NAVIGATOR_TIMES"
}
finish() {
  local ended=$? name
  trap '' TERM INT
  for name in "${waiting[@]}"; do row "$name" $SECONDS 0 "" "left out"; done
  [ -n "${KEEP:-}" ] || "$root/tests/testbed/down.sh" "$dir" --clean || true
  if [ ${#failed[@]} -gt 0 ]; then echo "run.sh: FAILED: ${failed[*]}"; fi
  if [ ${#waiting[@]} -gt 0 ]; then echo "run.sh: did not run: ${waiting[*]}"; fi
  if [ $ended = 0 ] && [ ${#failed[@]} -gt 0 ]; then ended=1; fi
  exit $ended
}
trap finish EXIT

processor() { # processor seconds of all that ever ran in this bed, in hundredths: of what lives, and of what has been waited for
  [ -z "${NAVIGATOR_BED_ALONE:-}" ] || cat /proc/[0-9]*/stat 2>/dev/null | sed 's/^.*) //' | awk '{sum += $12 + $13 + $14 + $15} END {print sum}'
}

"$root/tests/testbed/down.sh" "$dir" --clean >/dev/null 2>&1 || true
"$root/tests/testbed/up.sh" "$dir"
for image in "$root/bin/navigator-image.tar" "$dir"/images/*.tar; do
  ctr -a "$dir/run/containerd.sock" -n k8s.io images import "$image" >/dev/null
done
echo "bed is up with its images after $((SECONDS - begun)) s"

job() { # NAME: runs it; the last line of one that failed is `NAME FAILED: first failure`
  local name=$1 code=0
  "$dir/venv/bin/python" "$root/tests/e2e/$name.py" 2>&1 | tee "$dir/run/$name.log" || code=$?
  [ $code = 0 ] || grep -q "^$name FAILED: " "$dir/run/$name.log" ||
    echo "$name FAILED: ended with $code without a word of why; it last said: $(tail -n 1 "$dir/run/$name.log")"
  return $code
}
over() { # NAME BEGUN SECONDS PROCESSOR CODE
  local outcome=passed left=() name
  [ "$5" = 0 ] || { outcome=FAILED && failed+=("$1"); }
  for name in "${waiting[@]}"; do [ "$name" = "$1" ] || left+=("$name"); done
  waiting=("${left[@]}")
  row "${@:1:4}" $outcome
}
for group; do
  echo "=== $group"
  began=$SECONDS used=$(processor)
  if [[ $group != *[+,]* ]]; then
    code=0
    job "$group" || code=$?
    over "$group" "$began" $((SECONDS - began)) "${used:+$((($(processor) - used) / 100))}" $code
    continue
  fi
  running=()
  for lane in ${group//+/ }; do
    for name in ${lane//,/ }; do
      code=0 since=$SECONDS
      job "$name" >"$dir/run/$name.out" 2>&1 || code=$?
      echo "$since $((SECONDS - since)) $code" >"$dir/run/$name.ended"
    done & running+=("$lane=$!")
  done
  # The jobs ran beside each other; their logs are printed one after the other.
  for one in "${running[@]}"; do
    wait "${one#*=}"
    lane=${one%=*}
    for name in ${lane//,/ }; do
      read -r since took code <"$dir/run/$name.ended"
      over "$name" "$since" "$took" "" "$code"
      echo "=== $name"; cat "$dir/run/$name.out"
    done
  done
  echo "=== $group: $((SECONDS - began)) s${used:+, $((($(processor) - used) / 100)) processor seconds}"
done
