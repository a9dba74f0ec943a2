//! Elasticsearch's entry for `kubectl navigator`.

use super::{names::NAMES, v1beta1::ElasticsearchNode};
use crate::plugin::{NodeLoad, ShownDatabase};

pub const DATABASE: ShownDatabase = ShownDatabase {
    names: &NAMES,
    shell: &["sh", "-c", CONSOLE, "console"],
    load: |status| Some(NodeLoad::Documents(status.part::<ElasticsearchNode>()?.documents?)),
    cleans_up: false,
    lost_with_quorum: Some(
        "\
- Indices, mappings, settings and users that the lost masters had agreed on and that this node had \
         not heard of yet.
- Every shard without a copy on a node that is left, and writes that only lost copies had.
- The membership of all other nodes: each is detached from the former cluster, and joins with the \
         shards that it has. A lost master that comes back with its volume is detached as well.
Take the node whose copy of the state is newest: the highest term, then the highest version, of
  kubectl navigator shell CLUSTER NODE -- \
         '_cluster/state/version,metadata?local&filter_path=version,metadata.cluster_coordination.term'",
    ),
    remark: |status| {
        status.part::<ElasticsearchNode>()?.elected_master?.then(|| "elected master".to_owned())
    },
};

/// Shell script of the console. Elasticsearch has no client of its own for a terminal, but its
/// images have curl: the console sends one request where words are given, else one for each line.
const CONSOLE: &str = r#"
ask() {
  method=GET
  case "$1" in GET|PUT|POST|DELETE) method=$1; shift ;; esac
  path=${1#/}
  [ $# -eq 0 ] || shift
  if [ $# -eq 0 ]; then
    curl -sS -X "$method" "http://127.0.0.1:9200/$path"
  else
    curl -sS -X "$method" -H 'Content-Type: application/json' -d "$*" "http://127.0.0.1:9200/$path"
  fi
}
if [ $# -gt 0 ]; then ask "$@"; exit; fi
echo '[GET|PUT|POST|DELETE] PATH [BODY], for example: _cat/nodes?v' >&2
set -f
while printf '> ' >&2 && read -r line; do
  set -- $line
  [ $# -eq 0 ] || { ask "$@"; echo; }
done"#;
