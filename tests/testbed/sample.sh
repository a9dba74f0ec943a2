#!/usr/bin/env bash
# sample.sh [DIR]: builds k8s.io/sample-apiserver from its Go module into DIR/bin, unless another checkout did (cache.sh):
# what `make bench-serve` measures our API server beside. Needs go >= 1.24. Two and a half minutes on 2 cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mkdir -p "${1:-.testbed}" && cd "${1:-.testbed}" && pwd)
# Of the same release as the bed's kube-apiserver.
sample=${SAMPLE_VERSION:-0.34.4} program=$dir/bin/sample-apiserver
export CGO_ENABLED=0 GOFLAGS=-mod=mod
. "$here/cache.sh"
kept=testbed/$(key "$here/sample.sh" "$sample" "$(go version)")/sample-apiserver
[ ! -x "$program" ] || exit 0
! cached "$kept" "$program" || exit 0
begun=$SECONDS
mkdir -p "$dir"/{bin,src/sample-apiserver} && cd "$dir/src/sample-apiserver"
[ -f go.mod ] || go mod init testbed/sample-apiserver >/dev/null 2>&1
"$here/../../scripts/fetch.sh" go get "k8s.io/sample-apiserver@v$sample"
"$here/../../scripts/fetch.sh" go list -deps k8s.io/sample-apiserver >/dev/null
go build -trimpath -ldflags "-s -w" -o "$program.part" k8s.io/sample-apiserver
mv "$program.part" "$program"
keep "$kept" "$program"
echo "sample-apiserver: $((SECONDS - begun)) s"
