# kubernetes.sh, to be sourced: the Go module of one Kubernetes.
fetch=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../scripts" && pwd)/fetch.sh

# kubernetes_module FOLDER VERSION: makes FOLDER a Go module that requires this Kubernetes.
#
# k8s.io/kubernetes requires its own staging modules as v0.0.0, which no registry has: here each is required in the release of the same number.
kubernetes_module() {
  mkdir -p "$1"
  [ ! -f "$1/.complete" ] || return 0
  printf 'module testbed/kubernetes\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n' "$2" >"$1/go.mod"
  (
    cd "$1" &&
      "$fetch" go mod download -json "k8s.io/kubernetes@v$2" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p' |
      xargs grep -oE '^\s+k8s.io/[a-z0-9-]+ v0\.0\.0$' | awk '{print $1}' | sort -u |
        while read -r staged; do go mod edit -require "$staged@v0.${2#1.}"; done
  ) && touch "$1/.complete"
}
