"""A pool is taken out of the spec of an Elasticsearch and added again, before and after its node was drained, with claims that go and claims that stay.

A client writes and reads documents meanwhile. Not part of CI: `make e2e-edits`.
"""
import json
import time

from bed import claim, kubectl, main, say, step
from cluster import Elasticsearch
from es import Client
from navigator import install

NS = "pools"
THREE = Elasticsearch(NS, "three")
INDEX = "kept"
NODE, CLAIM = THREE.node("b"), f"{THREE.volume}-{THREE.node('b')}"


def manifest(when_scaled, *names):
    """Pool a has two nodes, pool b one."""
    thing = THREE.pools(names)
    for pool in thing["spec"]["nodePools"]:
        pool["replicas"] = 2 if pool["name"] == "a" else 1
        pool["persistence"] = {**pool["persistence"], "retention": {"whenScaled": when_scaled}}
    return thing


def green(nodes):
    def check():
        health = THREE.ask("GET", "/_cluster/health")[1]
        return (health.get("status"), health.get("number_of_nodes")) == ("green", nodes) or json.dumps(health)
    THREE.wait(f"green with {nodes} nodes", check, 300)


def may_leave(allowed):
    """By a rule of the index, the shards of a node that leaves may go nowhere."""
    most = None if allowed else 4
    THREE.ask("PUT", f"/{INDEX}/_settings", {"index.routing.allocation.total_shards_per_node": most})


def claim_uid():
    held = THREE.get("pvc", CLAIM)
    return held and held["metadata"]["uid"]


def before_its_drain(when_scaled):
    """The node cannot give its shards away yet, and stays."""
    pod, volume = THREE.get("pod", NODE)["metadata"]["uid"], claim_uid()
    may_leave(False)
    THREE.apply(manifest(when_scaled, "a"))

    def leaves():
        pilot = THREE.get("pilot", NODE)
        told = [entry.get("message") for entry in pilot["status"].get("conditions", []) if entry["type"] == "Decommissioned"]
        return [told[0]] if told and "may not go to any other node" in (told[0] or "") else json.dumps([pilot["status"].get("phase"), told])
    say(f"    {THREE.wait('it is told why the node does not leave', leaves)[0][:200]}")
    begun = time.monotonic()
    THREE.apply(manifest(when_scaled, "a", "b"))
    THREE.ready(nodes=3)
    say(f"    Ready after {time.monotonic() - begun:.0f} s")
    claim("it is the same pod on the same volume", (THREE.get("pod", NODE)["metadata"]["uid"], claim_uid()) == (pod, volume), (pod, volume))
    may_leave(True)
    green(3)


def after_its_drain(when_scaled):
    """The node has left, and its volume says so: no node can start on it."""
    volume = claim_uid()
    THREE.apply(manifest(when_scaled, "a"))
    THREE.wait("its Pilot is gone", lambda: THREE.get("pilot", NODE) is None or "still there", 400)
    THREE.ready(nodes=2, deadline=300)
    green(2)
    claim("its claim is there: no pool says any more that it may go", claim_uid() == volume, volume)
    begun = time.monotonic()
    THREE.apply(manifest(when_scaled, "a", "b"))
    if when_scaled == "Retain":
        def held():
            found = THREE.status().get("operation", {}).get("blockedBy", [])
            return [one for one in found if one["predicate"] == "ClaimKept"] or json.dumps(THREE.status())
        told = THREE.wait("ClaimKept", held)[0]
        say(f"    after {time.monotonic() - begun:.0f} s: {told['message']}; {told['hint']}")
        claim("the hint names the claim", CLAIM in told["hint"], told)
        claim("the claim is there", claim_uid() == volume, volume)
        kubectl("delete", "pvc", "-n", NS, CLAIM, "--wait=false")
    THREE.ready(nodes=3, deadline=600)
    say(f"    Ready after {time.monotonic() - begun:.0f} s")
    claim("it has another volume", claim_uid() != volume, volume)
    green(3)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("an Elasticsearch of two pools, and an index with two copies of each shard"):
        THREE.apply(manifest("Delete", "a", "b"))
        THREE.ready(nodes=3, deadline=900)
        THREE.ignore_disk()
        made = THREE.ask("PUT", f"/{INDEX}", {"settings": {"number_of_shards": 6, "number_of_replicas": 1}})
        claim("the index is made", made[0] == 200, made)
        green(3)
    with Client(THREE.addresses(), INDEX) as client:
        for when_scaled in ("Delete", "Retain"):
            with step(f"whenScaled {when_scaled}: the pool is removed, and added again before its drain"):
                THREE.apply(manifest(when_scaled, "a", "b"))
                THREE.ready(nodes=3, deadline=300)
                before_its_drain(when_scaled)
            with step(f"whenScaled {when_scaled}: the pool is removed, and added again after its drain"):
                after_its_drain(when_scaled)
    say(f"    {client.figures()}")
    claim("it was never red", "red" not in client.seen, client.seen)
    claim("no request failed after one retry", client.done > 100 and not client.failed, client.failed[:5])
    with step("every acknowledged document is there"):
        missing = client.missing()
        claim(f"all {len(client.acknowledged)} documents are there", not missing, missing[:10])
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
