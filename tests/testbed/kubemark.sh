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
. "$here/kubernetes.sh"
for version in $versions; do
  name=kubemark-$version kept=testbed/$(key "$here/kubemark.sh" "$here/kubernetes.sh" "$version" "$(go version)")/kubemark
  [ ! -x "$dir/bin/$name" ] || continue
  ! cached "$kept" "$dir/bin/$name" || continue
  begun=$SECONDS
  mkdir -p "$dir/bin"
  kubernetes_module "$dir/src/$name" "$version"
  cd "$dir/src/$name"
  component=k8s.io/component-base/version
  stamp="-X $component.gitVersion=v$version -X $component.gitMajor=1 -X $component.gitMinor=$(cut -d. -f2 <<<"$version")"
  "$fetch" go list -deps k8s.io/kubernetes/cmd/kubemark >/dev/null
  go build -trimpath -ldflags "-s -w $stamp" -o "$dir/bin/$name.part" k8s.io/kubernetes/cmd/kubemark
  mv "$dir/bin/$name.part" "$dir/bin/$name"
  keep "$kept" "$dir/bin/$name"
  echo "$name: $((SECONDS - begun)) s"
done
