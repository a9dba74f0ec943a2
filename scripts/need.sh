#!/usr/bin/env bash
# need.sh COMMAND=PACKAGE ...: installs the Debian package of each command (or file, when it has a slash) that is missing;
# where it may not, says in one line what to install, and fails.
set -euo pipefail
look() {
  local pair wanted
  missing=()
  for pair; do
    wanted=${pair%%=*}
    case "$wanted" in
      /*) [ -e "$wanted" ] ;;
      *) command -v "$wanted" >/dev/null 2>&1 || [ -e "/sbin/$wanted" ] ;;
    esac || missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || exit 0
}
look "$@"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "please install: ${missing[*]} (Debian: apt-get install ${missing[*]})" >&2
  exit 1
fi
# One need.sh at a time, because apt fails where another apt runs. Then look again: the other one may have installed the packages.
exec 9>>/run/lock/navigator-need && flock 9
look "$@"
echo "installing ${missing[*]}"
log=$(mktemp)
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 ||
  { tail -n 20 "$log" >&2; echo "could not install: ${missing[*]}" >&2; exit 1; }
