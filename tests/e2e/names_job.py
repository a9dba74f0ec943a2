"""Two clusters that need the same names, for each database and in both orders: `logs` with pool `prod-hot`, and `logs-prod` with pool `hot`.

The second write is refused. When only the volumes of the first are left, the second makes nothing and deletes nothing. Then the first is made again, and has its
data. Not part of CI: `make e2e-edits`.
"""
from bed import claim, kubectl, main, step
from cluster import Cassandra, Elasticsearch
from navigator import install

ROWS, DOCUMENTS = 300, 100
PAIR = [("logs", "prod-hot"), ("logs-prod", "hot")]


def made(database, namespace, name, pool):
    """A cluster of one node that goes by these names, and its manifest: it asks that its claims be deleted with it if `name` is the second one's."""
    cluster = database(namespace, name)
    cluster.set = f"{cluster.prefix}-{name}-{pool}"
    return cluster


def manifest(cluster, pool, keep):
    thing = cluster.manifest(1)
    one = thing["spec"]["nodePools"][0]
    one["name"] = pool
    one["persistence"]["retention"] = {"whenDeleted": "Retain" if keep else "Delete"}
    return thing


def fill(cluster):
    if isinstance(cluster, Cassandra):
        cluster.write(ROWS)
    else:
        cluster.fill(DOCUMENTS, 1)


def has_its_data(cluster):
    if isinstance(cluster, Cassandra):
        cluster.has_rows(ROWS)
    else:
        cluster.has_documents(range(DOCUMENTS))


def claims(cluster):
    found = kubectl("get", "pvc", "-n", cluster.namespace, "-o", "jsonpath={range .items[*]}{.metadata.uid} {.metadata.name}{'\\n'}{end}")
    return set(found.splitlines())


def order(database, namespace, first, second):
    kubectl("create", "namespace", namespace)
    one, two = (made(database, namespace, *names) for names in (first, second))
    one.apply(manifest(one, first[1], keep=True))
    one.ready(1)
    fill(one)
    before = claims(one)
    said = two.apply(manifest(two, second[1], keep=False), check=False)
    claim("the second write is refused, and names the first cluster", f'"{first[0]}" needs the name of StatefulSet' in said, said)
    one.delete()
    claim("the volume of the first stays", claims(one) == before, claims(one))
    two.apply(manifest(two, second[1], keep=False))
    ready = two.tells("Ready", "False", "NameConflict")
    claim("status names the volume and the first cluster", f'"{first[0]}"' in str(ready) and "PersistentVolumeClaim" in str(ready), ready)
    for kind in ("statefulset", "service", "pod", "serviceaccount"):
        found = kubectl("get", kind, "-n", namespace, "-o", "name").split()
        claim(f"no {kind} is made", not [name for name in found if name not in ("serviceaccount/default", "service/kubernetes")], found)
    two.delete()
    claim("the volume of the first is still there", claims(one) == before, claims(one))
    one.apply(manifest(one, first[1], keep=True))
    one.ready(1)
    has_its_data(one)
    kubectl("delete", "namespace", namespace, "--wait=false")


def job():
    install()
    for database in (Cassandra, Elasticsearch):
        for number, (first, second) in enumerate([PAIR, PAIR[::-1]]):
            with step(f"{database.kind}: {first[0]} with pool {first[1]}, then {second[0]} with pool {second[1]}"):
                order(database, f"names-{database.prefix}-{number}", first, second)


if __name__ == "__main__":
    main(job)
