#!/usr/bin/env bash
# machine.sh [DIR]: builds from Go modules into DIR/bin what a machine of kubeadm is upgraded from and by: kubelet-VERSION of the minor version
# before the bed's, and kubeadm of the bed's own; unless another checkout did (cache.sh). Needs go >= 1.24. A few minutes for each on 2 cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "${1:-.testbed}" && cd "${1:-.testbed}" && pwd)
export CGO_ENABLED=0 GOFLAGS=-mod=mod
. "$here/cache.sh"
build() { # PROGRAM VERSION
  local name=$1-$2 kept begun=$SECONDS
  kept=testbed/$(key "$here/machine.sh" "$2" "$(go version)")/$1
  [ ! -x "$dir/bin/$name" ] || return 0
  ! cached "$kept" "$dir/bin/$name" || return 0
  mkdir -p "$dir"/{bin,"src/kubernetes-$2"} && cd "$dir/src/kubernetes-$2"
  # k8s.io/kubernetes names its own staging modules v0.0.0: each must be replaced by the release of the same number.
  if [ ! -f .complete ]; then
    printf 'module testbed/kubernetes\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n' "$2" >go.mod
    "$here/../../scripts/fetch.sh" go mod download -json "k8s.io/kubernetes@v$2" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p' |
      xargs grep -oE '^\s+k8s.io/[a-z0-9-]+ v0\.0\.0$' | awk '{print $1}' | sort -u |
      while read -r staged; do go mod edit -replace "$staged=$staged@v0.${2#1.}"; done
    touch .complete
  fi
  local component=k8s.io/component-base/version
  "$here/../../scripts/fetch.sh" go list -deps "k8s.io/kubernetes/cmd/$1" >/dev/null
  go build -trimpath -o "$dir/bin/$name.part" \
    -ldflags "-s -w -X $component.gitVersion=v$2 -X $component.gitMajor=1 -X $component.gitMinor=$(cut -d. -f2 <<<"$2")" \
    "k8s.io/kubernetes/cmd/$1"
  mv "$dir/bin/$name.part" "$dir/bin/$name"
  keep "$kept" "$dir/bin/$name"
  echo "$name: $((SECONDS - begun)) s"
}
build kubelet 1.33.13
build kubeadm 1.34.4
