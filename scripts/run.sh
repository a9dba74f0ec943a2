#!/usr/bin/env bash
# run.sh NAVIGATOR: three Cassandra nodes on this machine, without Kubernetes: fetches a distribution, starts all of it,
# writes a row through one node and reads it through another. What runs is left running.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
navigator=${1:?usage: run.sh NAVIGATOR}
version=5.0.6 sample=deploy/samples/quickstart-cassandra.yaml
cd "$root"

# Databases run as users of their own where this is root, and those may not go into root's home.
if [ "$(id -u)" = 0 ]; then homes=/var/cache/navigator/homes; else homes=${XDG_CACHE_HOME:-$HOME/.cache}/navigator/homes; fi
homes=${NAVIGATOR_HOMES:-$homes} home=$homes/cassandra-$version
say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

say "fetching Cassandra $version"
mkdir -p "$homes"
tests/testbed/get-cassandra.sh "$version" "$home"

say "starting $sample"
"$navigator" local up --home "cassandra=$home" -f "$sample" --wait
nodes=$("$navigator" local status -o json | python3 -c '
import json, sys
clusters = json.load(sys.stdin)["clusters"]
demo = next(one for one in clusters if (one["namespace"], one["name"]) == ("default", "demo"))
print(*(member["address"] for member in demo["members"]))')
read -r first _ last <<<"$nodes"

# Beside the kubeconfig: nobody but this user reads it, and it goes with the data.
kubeconfig=$("$navigator" local kubeconfig)
credentials=$(dirname "$kubeconfig")/demo.json
(umask 077; KUBECONFIG=$kubeconfig "$navigator" plugin get-credentials demo --ca "${credentials%.json}-ca.crt" -o json >"$credentials")
cql() { scripts/cql.py --level QUORUM --credentials "$credentials" "$@"; }

say "writing a row through $first and reading it through ${last:-$first}, over TLS and with a password"
cql "$first" \
  "CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 3}" \
  "CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY, body text)" \
  "INSERT INTO shop.orders (id, body) VALUES (1, 'a row that three nodes hold')"
cql "${last:-$first}" "SELECT id, body FROM shop.orders WHERE id = 1"

say "three nodes are ready. What next:"
show=$navigator
case $show in "$root"/*) show=./${show#"$root"/} ;; esac
cat <<NEXT
  $show local status                                     # what runs, with addresses
  $show local logs cass-demo-ring-0 -f                   # what one node writes
  scripts/cql.py --credentials $credentials $first "SELECT * FROM shop.orders"
                                                         # user, password and CA: in that file, and in Secret cass-demo-admin

  export KUBECONFIG=\$($show local kubeconfig)            # with kubectl, the same as on Kubernetes:
  kubectl get cassandraclusters,pods
  kubectl edit cassandracluster demo                     # another number of replicas, say

  $show local down                                       # stop; data stay
  $show local up                                         # go on
  $show local down --delete-data                         # stop, and delete everything
NEXT
