"""A Cassandra is upgraded from one major version to the next, and in the middle of that a node is lost with its volume and given up. Its successor joins a ring of two
majors, the upgrade ends, and every row is there.

HALFWAY names what is lost: `older`, a node that is not upgraded; `newer`, the one that is; `six`, an older one of six nodes. Not part of CI: `make e2e-halfway`.
"""
import json
import os
import time

from bed import claim, kubectl, main, say, step
from cluster import Cassandra
from cql import Session
from navigator import install
from plugin import Plugin

NS = "halfway"
OLD, NEW = "4.1.10", "5.0.6"
ROWS = 500
OF = os.environ.get("HALFWAY", "older newer six").split()


def versions(ring):
    """The version that each node runs, by name."""
    return {name: pilot.get("status", {}).get("version") for name, pilot in ring.pilots().items()}


def begun(name, replicas):
    """A ring of three racks, of which a canary has upgraded one node; returns that node too."""
    ring = Cassandra(NS, name)
    nodes = 3 * replicas
    with step(f"{nodes} nodes of {OLD} with {ROWS} rows"):
        small = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1536Mi"}}
        thing = ring.pools("abc", replicas, resources=small)
        thing["spec"]["version"] = OLD
        ring.apply(thing)
        ring.ready(nodes=nodes, deadline=2400)
        ring.write(ROWS, copies=3)
    with step(f"{NEW}, and a canary of one node"):
        ring.patch(version=NEW, updateStrategy={"canary": {"replicas": 1}})

        def held():
            blocks = [entry["predicate"] for entry in ring.status().get("operation", {}).get("blockedBy", [])]
            return "CanaryHeld" in blocks and list(versions(ring).values()).count(NEW) == 1 or json.dumps([blocks, versions(ring)])
        ring.wait("one node is upgraded, and the canary holds", held, 900)
        (newer,) = [node for node, version in versions(ring).items() if version == NEW]
        # A cluster whose canary is held is not Ready.
        ring.serves(nodes, 300)
    return ring, nodes, newer


def tried(what):
    ring, nodes, newer = begun(what, 2 if what == "six" else 1)
    lost = newer if what == "newer" else next(node for node in sorted(versions(ring)) if node != newer)
    with step(f"{lost}, of {versions(ring)[lost]}, is lost with its volume, and given up"):
        data = ring.lose(lost)
        ring.says(f"give-up={data}")
        since = time.monotonic()
        Plugin(NS).give_up(ring, lost.removeprefix(f"cass-{ring.name}-"), data)
        if what == "newer":
            # No node of the newer major is there that it could get the tables from.
            ring.says(f"set spec.version of the cluster to {OLD}")
            ring.patch(version=OLD)
        ring.serves(nodes, 900)
        say(f"    all serve after {time.monotonic() - since:.0f} s: {versions(ring)}")
    with step("the canary ends, and the upgrade with it"):
        since = time.monotonic()
        ring.patch(version=NEW, updateStrategy=None)
        ring.wait("each node is upgraded", lambda: set(versions(ring).values()) == {NEW} or str(versions(ring)), 1500)
        ring.ready(nodes=nodes, deadline=600)
        say(f"    after {time.monotonic() - since:.0f} s")
        for address in ring.addresses()():
            with Session(address) as session:
                found = session.read(ROWS)
            claim(f"all {ROWS} rows are read through {address}", found == ROWS, found)
    ring.delete()
    ring.pods_are_gone(600)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    for what in OF:
        tried(what)
    kubectl("delete", "namespace", NS, timeout=1000)


if __name__ == "__main__":
    main(job)
