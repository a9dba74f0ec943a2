#!/usr/bin/env bash
# kubemark.sh [DIR]: builds hollow kubelets from Go modules into DIR/bin, as kubemark-VERSION, unless another checkout did (cache.sh): the
# kubelet's own code over a container runtime that only remembers. Needs go >= 1.24. A few minutes for each version on 2 cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "${1:-.testbed}" && cd "${1:-.testbed}" && pwd)
# That of the bed's kube-apiserver (build.sh), and the last of the minor version before it.
versions=${KUBEMARK_VERSIONS:-1.33.13 1.34.4}
export CGO_ENABLED=0 GOFLAGS=-mod=mod
. "$here/cache.sh"
for version in $versions; do
  name=kubemark-$version kept=testbed/$(key "$here/kubemark.sh" "$version" "$(go version)")/kubemark
  [ ! -x "$dir/bin/$name" ] || continue
  ! cached "$kept" "$dir/bin/$name" || continue
  begun=$SECONDS
  mkdir -p "$dir"/{bin,"src/$name"} && cd "$dir/src/$name"
  # k8s.io/kubernetes names its own staging modules v0.0.0: each must be replaced by the release of the same number.
  if [ ! -f .complete ]; then
    printf 'module testbed/kubemark\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n' "$version" >go.mod
    "$here/../../scripts/fetch.sh" go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p' |
      xargs grep -oE '^\s+k8s.io/[a-z0-9-]+ v0\.0\.0$' | awk '{print $1}' | sort -u |
      while read -r staged; do go mod edit -replace "$staged=$staged@v0.${version#1.}"; done
    touch .complete
  fi
  component=k8s.io/component-base/version
  stamp="-X $component.gitVersion=v$version -X $component.gitMajor=1 -X $component.gitMinor=$(cut -d. -f2 <<<"$version")"
  "$here/../../scripts/fetch.sh" go list -deps k8s.io/kubernetes/cmd/kubemark >/dev/null
  go build -trimpath -ldflags "-s -w $stamp" -o "$dir/bin/$name.part" k8s.io/kubernetes/cmd/kubemark
  mv "$dir/bin/$name.part" "$dir/bin/$name"
  keep "$kept" "$dir/bin/$name"
  echo "$name: $((SECONDS - begun)) s"
done
