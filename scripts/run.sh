#!/usr/bin/env bash
# run.sh fetch: fetches the distribution of Cassandra alone.
# run.sh NAVIGATOR: three Cassandra nodes, or NODES of them, on this machine, without Kubernetes: fetches a distribution, starts
# all of it, writes a row through one node and reads it through another. What runs is left running.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
navigator=${1:?usage: run.sh fetch|NAVIGATOR}
version=5.0.6 sample=deploy/samples/quickstart-cassandra.yaml
cd "$root"
nodes() { if [ "$1" = 1 ]; then echo "1 node"; else echo "$1 nodes"; fi; }

# Databases run as users of their own where this is root, and those may not go into root's home.
if [ "$(id -u)" = 0 ]; then homes=/var/cache/navigator/homes; else homes=${XDG_CACHE_HOME:-$HOME/.cache}/navigator/homes; fi
homes=${NAVIGATOR_HOMES:-$homes} home=$homes/cassandra-$version
say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

mkdir -p "$homes"
tests/testbed/get-cassandra.sh "$version" "$home"
[ "$navigator" != fetch ] || exit 0

addresses() { # of the nodes of cluster `demo`; nothing where there is no such cluster
  "$navigator" local status -o json | python3 -c '
import json, sys
clusters = json.load(sys.stdin)["clusters"]
print(*(member["address"] for one in clusters if (one["namespace"], one["name"]) == ("default", "demo") for member in one["members"]))'
}

"$navigator" local up --home "cassandra=$home"
read -ra running <<<"$(addresses)"
# A cluster that is there keeps the number that people gave it.
count=${NODES:-${#running[@]}}
[ "$count" != 0 ] || count=3
if [ ${#running[@]} != 0 ] && [ ${#running[@]} != "$count" ]; then
  echo "run.sh: cluster demo runs here with $(nodes ${#running[@]}). Change that with kubectl edit cassandracluster demo, or begin again without its data:" \
    "$navigator local down --delete-data" >&2
  exit 1
fi
say "starting $sample with $(nodes "$count")"
cluster=$(mktemp)
trap 'rm -f "$cluster"' EXIT
sed "s/^    replicas: 3$/    replicas: $count/" "$sample" >"$cluster"
"$navigator" local up -f "$cluster" --wait
read -ra all <<<"$(addresses)"
first=${all[0]} last=${all[-1]}
copies=$((count < 3 ? count : 3))

# Beside the kubeconfig: nobody but this user reads it, and it goes with the data.
kubeconfig=$("$navigator" local kubeconfig)
credentials=$(dirname "$kubeconfig")/demo.json
(umask 077; KUBECONFIG=$kubeconfig "$navigator" plugin get-credentials demo --ca "${credentials%.json}-ca.crt" -o json >"$credentials")
cql() { scripts/cql.py --level QUORUM --credentials "$credentials" "$@"; }

say "writing a row through $first and reading it through $last, over TLS and with a password"
cql "$first" \
  "CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': $copies}" \
  "CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY, body text)" \
  "INSERT INTO shop.orders (id, body) VALUES (1, 'a row in $copies copies')"
cql "$last" "SELECT id, body FROM shop.orders WHERE id = 1"

say "$(nodes "$count") ready. What next:"
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
