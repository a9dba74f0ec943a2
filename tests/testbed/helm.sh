#!/usr/bin/env bash
# helm.sh [DIR]: builds Helm from its Go module into DIR/bin, unless another checkout did (cache.sh). Needs go >= 1.24.
# A minute and a half on 2 cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "${1:-.testbed}" && cd "${1:-.testbed}" && pwd)
# The last that go 1.24 builds; its libraries are those of the bed's Kubernetes.
helm=${HELM_VERSION:-3.19.5} program=$dir/bin/helm
export CGO_ENABLED=0 GOFLAGS=-mod=mod
. "$here/cache.sh"
kept=testbed/$(key "$here/helm.sh" "$helm" "$(go version)")/helm
[ ! -x "$program" ] || exit 0
! cached "$kept" "$program" || exit 0
begun=$SECONDS
mkdir -p "$dir"/{bin,src/helm} && cd "$dir/src/helm"
[ -f go.mod ] || go mod init testbed/helm >/dev/null 2>&1
"$here/../../scripts/fetch.sh" go get "helm.sh/helm/v3@v$helm"
module=helm.sh/helm/v3
# For which Kubernetes it renders where none is asked.
minor=$(go list -m -f '{{.Version}}' k8s.io/client-go | cut -d. -f2)
stamp="-X $module/internal/version.version=v$helm"
for package in chartutil lint/rules; do
  stamp+=" -X $module/pkg/$package.k8sVersionMajor=1 -X $module/pkg/$package.k8sVersionMinor=$minor"
done
"$here/../../scripts/fetch.sh" go list -deps helm.sh/helm/v3/cmd/helm >/dev/null
go build -trimpath -ldflags "-s -w $stamp" -o "$program.part" helm.sh/helm/v3/cmd/helm
mv "$program.part" "$program"
keep "$kept" "$program"
echo "helm: $((SECONDS - begun)) s"
