#!/usr/bin/env bash
# jolokia.sh OUT.jar: the Jolokia agent that the binary embeds, by version and SHA-256, from the Java package registry
# that the local mvn is configured for.
set -euo pipefail
out=${1:?usage: jolokia.sh OUT.jar}
version=2.2.9 sha256=f5c4b31eeeb602888346ce7b545a885cb7caf932eff3b1b630e93cc720483429
check() { echo "$sha256  $1" | sha256sum --check --status; }
[ -f "$out" ] && check "$out" && exit 0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$(dirname "${BASH_SOURCE[0]}")/fetch.sh" mvn -B -q org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
  -Dartifact="org.jolokia:jolokia-agent-jvm:$version:jar:javaagent" -DoutputDirectory="$tmp" >/dev/null
check "$tmp"/*.jar || { echo "jolokia.sh: the agent of version $version does not have SHA-256 $sha256" >&2; exit 1; }
mkdir -p "$(dirname "$out")"
install -m 644 "$tmp"/*.jar "$out.$$" && mv "$out.$$" "$out"
