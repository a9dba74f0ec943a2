"""Pods that Kubernetes refuses, by a quota and by Pod Security: told within a minute in the words of the refusal, and no more told when it is mended.

A client writes and reads documents meanwhile. Not part of CI: `make e2e-refusals`.
"""
import json
import time

from bed import claim, kubectl, main, say, step
from cluster import Elasticsearch
from es import Client
from navigator import install

NS = "refused"
TRIO = Elasticsearch(NS, "trio")
INDEX = "kept"
LEVEL = "pod-security.kubernetes.io/enforce"
# Seconds within which a refusal is told.
TOLD = 60


def lines():
    """What the cluster tells: its conditions, and what holds a step."""
    status = TRIO.status()
    found = [f"{entry['type']}={entry['status']}/{entry.get('reason')}: {entry.get('message')}" for entry in status.get("conditions", [])]
    return found + [f"{entry['predicate']}: {entry.get('message')}; {entry.get('hint')}" for entry in status.get("operation", {}).get("blockedBy", [])]


def refusals():
    """What Kubernetes says, in events, of a pod that it cannot make."""
    events = [event for event in TRIO.events("FailedCreate") if event["regarding"]["name"] == TRIO.set]
    return events or "no event FailedCreate"


def is_told(*words):
    """Waits until the status has these words; claims that it was in time."""
    asked = time.monotonic()
    # (of many events about one object, client-go lets some through, and then one in five minutes)
    TRIO.wait("Kubernetes to say that it refuses the pod", refusals, 600, every=0.5)
    begun = time.monotonic()
    say(f"    Kubernetes says so after {begun - asked:.0f} s")

    def check():
        return [line for line in lines() if all(word in line for word in words)] or "; ".join(lines())
    found = TRIO.wait(f"the status to say {words}", check, every=0.5)
    took = time.monotonic() - begun
    for line in found:
        say(f"    after {took:.0f} s: {line[:400]}")
    claim(f"it is told within {TOLD} s", took <= TOLD, took)
    claim("it is told as PodAdmitted, and what to do", any(line.startswith("PodAdmitted: ") and not line.endswith("; None") for line in lines()), lines())


def is_mended(begun, word):
    TRIO.ready(nodes=3, deadline=600)
    say(f"    Ready {time.monotonic() - begun:.0f} s after it was mended")
    claim("nothing of it is told any more", not any(word in line or "PodAdmitted" in line for line in lines()), lines())


def forget_events():
    """Events of refusals that are over."""
    kubectl("delete", "events.events.k8s.io", "-n", NS, "--field-selector=reason=FailedCreate")


def quota():
    with step("a quota refuses the third pod: told"):
        kubectl("create", "quota", "small", "-n", NS, "--hard=pods=2")
        TRIO.scale(3)
        is_told(TRIO.pod_name(2), "exceeded quota: small")
    with step("the quota is raised: the third node joins"):
        begun = time.monotonic()
        kubectl("patch", "quota", "small", "-n", NS, "--type=merge", "-p", json.dumps({"spec": {"hard": {"pods": "5"}}}))
        is_mended(begun, "exceeded quota")


def pod_security():
    """Pods of Navigator's meet the level `restricted`; what a person adds to them may not."""
    root = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/var/tmp"}}]}}
    kubectl("label", "namespace", NS, f"{LEVEL}=restricted")
    for mended, mend in (("the edit is taken back", lambda: TRIO.patch(podTemplate=None)),
                         ("the namespace allows it", lambda: kubectl("label", "namespace", NS, f"{LEVEL}-"))):
        forget_events()
        before = {TRIO.pod_name(node): TRIO.pod_uid(node) for node in range(3)}
        with step("an edit makes pods that Pod Security refuses: told, and no other node goes"):
            TRIO.patch(podTemplate=root)
            is_told("violates PodSecurity", "restricted", "host")
            left = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in TRIO.pods()}
            claim("the other two are as they were", len(left) == 2 and left.items() <= before.items(), (before, left))
        with step(f"{mended}: the node is back"):
            begun = time.monotonic()
            mend()
            is_mended(begun, "PodSecurity")


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("an Elasticsearch of two nodes, and an index with two copies of each shard"):
        TRIO.apply(TRIO.manifest(2))
        TRIO.ready(nodes=2, deadline=900)
        TRIO.ignore_disk()
        made = TRIO.ask("PUT", f"/{INDEX}", {"settings": {"number_of_shards": 6, "number_of_replicas": 1}})
        claim("the index is made", made[0] == 200, made)
    with Client(TRIO.addresses(), INDEX) as client:
        quota()
        pod_security()
    say(f"    {client.figures()}")
    claim("it was never red", "red" not in client.seen, client.seen)
    claim("no request failed after one retry", client.done > 100 and not client.failed, client.failed[:5])
    with step("every acknowledged document is there"):
        missing = client.missing()
        claim(f"all {len(client.acknowledged)} documents are there", not missing, missing[:10])
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
