#!/usr/bin/env bash
# machine.sh [DIR]: builds from Go modules into DIR/bin what a machine of kubeadm is upgraded from and by: kubelet-VERSION of the minor version
# before the bed's, and kubeadm of the bed's own; unless another checkout did (cache.sh). Needs go >= 1.24. A few minutes for each on 2 cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "${1:-.testbed}" && cd "${1:-.testbed}" && pwd)
export CGO_ENABLED=0 GOFLAGS=-mod=mod
. "$here/cache.sh"
. "$here/kubernetes.sh"
build() { # PROGRAM VERSION
  local name=$1-$2 kept begun=$SECONDS
  kept=testbed/$(key "$here/machine.sh" "$here/kubernetes.sh" "$2" "$(go version)")/$1
  [ ! -x "$dir/bin/$name" ] || return 0
  ! cached "$kept" "$dir/bin/$name" || return 0
  mkdir -p "$dir/bin"
  kubernetes_module "$dir/src/kubernetes-$2" "$2"
  cd "$dir/src/kubernetes-$2"
  local component=k8s.io/component-base/version
  "$fetch" go list -deps "k8s.io/kubernetes/cmd/$1" >/dev/null
  go build -trimpath -o "$dir/bin/$name.part" \
    -ldflags "-s -w -X $component.gitVersion=v$2 -X $component.gitMajor=1 -X $component.gitMinor=$(cut -d. -f2 <<<"$2")" \
    "k8s.io/kubernetes/cmd/$1"
  mv "$dir/bin/$name.part" "$dir/bin/$name"
  keep "$kept" "$dir/bin/$name"
  echo "$name: $((SECONDS - begun)) s"
}
build kubelet 1.33.13
build kubeadm 1.34.4
