"""Wrong words in the spec of a Cassandra, and their correction: a node that serves no client, and a version that does not exist.

MISTAKES names some of them, and MISTAKES_SECONDS is how long each is watched at most. CI has a short form; all of it is `make e2e-mistakes`.
"""
import json
import os
import time

from bed import claim, kubectl, main, say, step
from cluster import Cassandra
from mistakes import heals, is_never_told_to_give_up
from navigator import install

NS = "mistakes-cass"
OF = os.environ.get("MISTAKES", "founding edit version").split()
ROWS = 500
NODES = 3


def given(cluster, key):
    """What each node is told for a key of its configuration."""
    return {name: pilot["spec"].get("config", {}).get(key) for name, pilot in cluster.pilots().items()}


def runs_and_does_not_serve(cluster):
    """Waits until some node has joined, serves nobody, and names the setting."""
    def check():
        seen = {name: pilot.get("status", {}) for name, pilot in cluster.pilots().items()}
        found = [f"{name}: {entry['message']}" for name, status in seen.items() for entry in status.get("conditions", [])
                 if entry["type"] == "Ready" and entry["status"] != "True" and "start_native_transport is false" in (entry.get("message") or "")]
        return found or json.dumps(seen)
    say(f"    {cluster.wait('a node that runs and does not serve', check, 400)[0]}")


def corrected(cluster, nodes):
    """The corrected spec reaches every node, and all serve."""
    begun, told = time.monotonic(), []

    def mend():
        cluster.patch(config={"start_native_transport": None})
        cluster.wait("every node to be told", lambda: set(given(cluster, "start_native_transport").values()) == {None}
                     or str(given(cluster, "start_native_transport")), 420)
        told.append(time.monotonic() - begun)
        say(f"    every node was told after {told[0]:.0f} s")
    heals(cluster, mend, nodes, 420)


def founded():
    one = Cassandra(NS, "founding")
    with step("a Cassandra is made with start_native_transport: false"):
        one.apply(one.manifest(1, config={"start_native_transport": False}))
        runs_and_does_not_serve(one)
        is_never_told_to_give_up(one, 150)
    with step("the setting is taken out: delivered, and Ready"):
        corrected(one, 1)
    one.delete()
    one.pods_are_gone(300)


def edited(three):
    with step("start_native_transport: false is written into a Cassandra that serves"):
        three.patch(config={"start_native_transport": False})
        runs_and_does_not_serve(three)
        is_never_told_to_give_up(three, 150)
        away = [name for name, pilot in three.pilots().items() if not any(entry["type"] == "Ready" and entry["status"] == "True"
                                                                           for entry in pilot["status"].get("conditions", []))]
        claim("one node has it, and the others wait for it", len(away) == 1, away)
    with step("it is taken out: delivered, and Ready"):
        corrected(three, NODES)
        three.has_rows(ROWS)


def mistyped(three):
    with step("version 5.0.66 in place of 5.0.6"):
        three.patch(version="5.0.66")
        three.tells("Stalled", "True", "ImagePullFailed", 300)
        is_never_told_to_give_up(three)
    with step("the version is corrected: Ready, and every row"):
        heals(three, lambda: three.patch(version="5.0.6"), NODES)
        three.has_rows(ROWS)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    if "founding" in OF:
        founded()
    three = Cassandra(NS, "ring")
    if {"edit", "version"} & set(OF):
        with step(f"a Cassandra of {NODES} racks, and {ROWS} rows"):
            three.apply(three.pools("abc"))
            three.ready(nodes=NODES, deadline=1500)
            three.write(ROWS, copies=3)
    if "edit" in OF:
        edited(three)
    if "version" in OF:
        mistyped(three)
    kubectl("delete", "namespace", NS, timeout=1000)


if __name__ == "__main__":
    main(job)
