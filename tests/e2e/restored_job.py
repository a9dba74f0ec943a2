"""A namespace with a Cassandra and an Elasticsearch is deleted, and put back from a copy of its objects: claims first, then Secrets, clusters, Pilots without their
status, and StatefulSets, as tools for backups do it. All nodes serve again, with the same passwords, rows and documents. Not part of CI: `make e2e-restored`.
"""
import json
import time

from bed import answered, claim, get, kubectl, main, say, step
from cluster import Cassandra, Elasticsearch
from navigator import install

NS = "restored"
ROWS, DOCUMENTS = 300, 50
RING, SEARCH = Cassandra(NS, "ring", mode=None), Elasticsearch(NS, "search", mode=None)
# In the order in which they are put back.
KINDS = ("pvc", "secrets", RING.plural, SEARCH.plural, "pilots", "statefulsets")


def copied(kind):
    """The objects of a kind, without what the API server of a cluster adds to them."""
    things = get(kind, "-n", NS)
    for thing in things:
        meta = thing["metadata"]
        notes = {key: value for key, value in meta.get("annotations", {}).items() if not key.startswith("pv.kubernetes.io/")}
        thing["metadata"] = {"name": meta["name"], "namespace": NS, "labels": meta.get("labels", {}), "annotations": notes}
        thing.pop("status", None)
    return things


def free(volumes):
    """Lets claims of the same names have the volumes again."""
    for volume in volumes:
        kubectl("patch", "pv", volume, "--type", "merge", "-p", json.dumps({"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}))


def put_back(things):
    """Creates the objects of a kind. What the controller has made by then stays, as tools for backups leave what is there."""
    done = answered("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": things}))
    others = [line for line in done.stderr.splitlines() if "AlreadyExists" not in line and not line.startswith("Warning: ")]
    claim("nothing is refused but what is there", not others, others)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step(f"a Cassandra of three racks with {ROWS} rows, and an Elasticsearch of two nodes with {DOCUMENTS} documents"):
        SEARCH.apply(SEARCH.manifest(2))
        SEARCH.ready(nodes=2, deadline=900)
        SEARCH.fill(DOCUMENTS, shards=1)
        RING.apply(RING.pools("abc"))
        RING.ready(nodes=3, deadline=1500)
        RING.write(ROWS, copies=3)
        logins = RING.credentials()[1], SEARCH.credentials()[1]
    with step("the namespace is deleted"):
        copies = {kind: copied(kind) for kind in KINDS}
        volumes = [held["spec"]["volumeName"] for held in copies["pvc"]]
        claim("each node has a volume", len(volumes) == 5, volumes)
        kubectl("delete", "namespace", NS, timeout=1000)
    with step("its objects are put back: all nodes serve"):
        free(volumes)
        begun = time.monotonic()
        kubectl("create", "namespace", NS)
        for kind in KINDS:
            put_back(copies[kind])
            time.sleep(2)
        for cluster, nodes in ((SEARCH, 2), (RING, 3)):
            cluster.ready(nodes=nodes, deadline=900)
            say(f"    {cluster.kind}: Ready after {time.monotonic() - begun:.0f} s")
    with step("the same passwords, rows and documents"):
        claim("the logins are those of before", (RING.credentials()[1], SEARCH.credentials()[1]) == logins)
        claim("each claim has the volume of before", sorted(held["spec"]["volumeName"] for held in RING.get("pvc")) == sorted(volumes), volumes)
        RING.has_rows(ROWS)
        SEARCH.has_documents(range(DOCUMENTS))
    kubectl("delete", "namespace", NS, timeout=1000)


if __name__ == "__main__":
    main(job)
