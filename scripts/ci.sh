#!/usr/bin/env bash
# ci.sh: all that a change must pass. Lanes that do not need each other run side by side, and each step of a lane keeps
# a log of its own, which is printed whole when the step ends. The table of their times at the end is also
# .cache/ci/times.tsv: step, second of its begin, seconds that it took, how it ended.
set -euo pipefail
set -m # each lane is a process group: it can be ended with all that it started
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs=$PWD/.cache/ci bed=${NAVIGATOR_TESTBED:-.testbed}
export NAVIGATOR_TIMES=$logs/times.tsv
rm -rf "$logs" && mkdir -p "$logs" && : >"$NAVIGATOR_TIMES"
lanes=()

say() { echo "=== $* ($SECONDS s)"; }

# step NAME COMMAND ...: one log, one line of the table.
step() {
  local name=$1 begun=$SECONDS end=passed
  shift
  say "$name begins: $*"
  NAVIGATOR_BEGUN=$begun "$@" >"$logs/$name.log" 2>&1 </dev/null || end=FAILED
  printf '%s\t%d\t%d\t%s\n' "$name" "$begun" $((SECONDS - begun)) $end >>"$NAVIGATOR_TIMES"
  { # Two logs at once would be none.
    flock 8
    say "$name $end after $((SECONDS - begun)) s, its log:"
    cat "$logs/$name.log"
  } 8>>"$logs/lock"
  [ $end = passed ]
}

# beside LANE ...: runs them at once. One that fails hides nothing of the others, but nothing comes after it.
beside() {
  local lane ended=0
  for lane; do "$lane" & lanes+=($!); done
  for lane in "${lanes[@]}"; do wait "$lane" || ended=1; done
  lanes=()
  return $ended
}

finish() {
  local ended=$? lane
  trap - EXIT
  for lane in "${lanes[@]}"; do kill -- "-$lane" 2>/dev/null || true; done
  wait
  echo; echo "=== seconds"
  sort -t "$(printf '\t')" -k 2,2n "$NAVIGATOR_TIMES" |
    awk -F '\t' 'BEGIN {printf "%7s %7s  %-8s %s\n", "begun", "took", "", "step"} {printf "%7d %7d  %-8s %s\n", $2, $3, $4, $1}'
  echo; grep -hE '^(test result|fuzz: .* ok$|[0-9]+ (scenarios|histories))' "$logs"/{test,fuzz,test-history,test-databases}.log 2>/dev/null || true
  [ $ended = 0 ] && say "all of it passed" || say "FAILED"
  exit "$ended"
}
trap finish EXIT
trap 'exit 130' INT TERM

compile() { step licenses make licenses; step lint make lint; step older make older; }
prepare() { step testbed make testbed; step clientgo tests/clientgo/build.sh "$bed"; step images tests/e2e/prepare.sh "$bed"; }
tests() { step test make test; step test-install make test-install; step test-history make test-history; }
databases() { step test-databases make test-databases; step test-local make test-local; step quickstart make test-quickstart; step fuzz make fuzz; }
# What needs no image goes on while that is made.
here() { tests; databases; }
# Kind to the tests beside it: some of those watch the clock.
there() { step image nice -n 10 make image; step e2e tests/e2e/run.sh "$bed"; }
# Behind those tests, and kind to all the rest: it only has to be done before the others are.
seeing() {
  until grep -q '^test\s' "$NAVIGATOR_TIMES"; do sleep 2; done
  step monitoring nice -n 15 make test-monitoring; step parity nice -n 5 make test-parity; step page nice -n 10 make test-page; step docs nice -n 19 make docs
}

step deps make deps
beside compile prepare
beside here there seeing
