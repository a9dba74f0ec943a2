#!/usr/bin/env bash
# need.sh COMMAND=PACKAGE ...: installs the Debian package of each command (or file, when it has a slash) that is missing;
# where it may not, says in one line what to install, and fails.
# need.sh --download PACKAGE: fetches the package's file into this folder, and installs nothing.
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
apt() { # WHAT ARG ...: apt-get with these arguments, of fresh lists, at most three times; WHAT is for people
  local what=$1 try; shift
  log=$(mktemp) && trap 'rm -f "$log"' EXIT
  for try in 1 2 3; do
    [ $try = 1 ] || sleep $((try * try * 3))
    # (another apt may run; an apt that was killed leaves packages half configured; lists that are not fresh may do)
    { [ $try = 1 ] || [ "$1" = download ] || dpkg --configure -a
      apt-get -o DPkg::Lock::Timeout=600 update -qq || true
      DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -y -qq "$@"; } >"$log" 2>&1 </dev/null 9>&- && return
    ! grep -q 'Unable to locate package' "$log" || break
  done
  tail -n 20 "$log" >&2
  echo "need.sh: could not get $what: is there a network, and do Debian's mirrors answer? (apt-get $*)" >&2
  exit 1
}
# One need.sh at a time, because apt fails where another apt runs.
alone() { exec 9>>/run/lock/navigator-need && flock 9; }

if [ "${1:-}" = --download ]; then
  if [ "$(id -u)" = 0 ]; then alone; apt "$2" download "$2"; else apt-get download -qq "$2"; fi
  exit
fi
look "$@"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "please install: ${missing[*]} (Debian: apt-get install ${missing[*]})" >&2
  exit 1
fi
alone
# The other one may have installed the packages.
look "$@"
echo "installing ${missing[*]}"
apt "${missing[*]}" install --no-install-recommends "${missing[@]}"
