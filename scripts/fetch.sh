#!/usr/bin/env bash
# fetch.sh COMMAND ...: runs a command that fetches from a registry, at most three times, and prints what it said once it has succeeded. After
# that it says in one line what to do. What a registry does not have is asked for once. One Maven at a time: ~/.m2 has no locks of its own.
set -uo pipefail
: "${1:?usage: fetch.sh COMMAND ...}"
missing='Could not find artifact|unknown revision|no matching versions'
out=$(mktemp) log=$(mktemp)
trap 'rm -f "$out" "$log"' EXIT
if [ "$1" = mvn ]; then
  mkdir -p ~/.m2 && exec 9>>~/.m2/navigator.lock && flock 9
fi
for pause in 5 20 0; do
  "$@" >"$out" 2>"$log" </dev/null 9>&- && { cat "$out"; exit 0; }
  if grep -qE "$missing" "$out" "$log"; then
    grep -hm1 -oE "($missing).{0,200}" "$out" "$log" >&2
    exit 1
  fi
  sleep $pause
done
cat "$out" "$log" | tail -n 20 >&2
echo "fetch.sh: not to be had in three tries: $(cut -c 1-140 <<<"$*"): is there a network, and does the registry answer? What was fetched once needs none." >&2
exit 1
