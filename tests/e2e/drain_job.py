"""Machines are drained: every pod of a cluster is evicted whenever its budget allows it, without pause, while a client uses the database.

A minute each by default; DRAIN_SECONDS=300 for longer. Not part of CI: `make e2e-drains`.
"""
import contextlib
import json
import os
import threading
import time

from bed import claim, kubectl, main, say, step
from cluster import Cassandra, Elasticsearch
from cql import QuorumClient
from es import Node
from navigator import install
from raw import request

NS = "drained"
SECONDS = int(os.environ.get("DRAIN_SECONDS", "60"))
WHY = "navigator.jetstack.io/drainable-why"
INDEX = "kept"


def pools(cluster, names, replicas=1):
    """The sample with these pools of equal nodes."""
    thing = cluster.manifest(replicas)
    one = thing["spec"]["nodePools"][0]
    thing["spec"]["nodePools"] = [{**one, "name": name} for name in names]
    return thing


def addresses_of(cluster):
    """Asks for the addresses of the pods that do not end; a busy server is no outage of the database, so then those of before."""
    known = []

    def ask():
        with contextlib.suppress(Exception):
            known[:] = [pod["status"]["podIP"] for pod in cluster.pods()
                        if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]]
        return known
    return ask


class Evictions:
    """Evicts as drains of all machines at once would, and asks of each refusal whether it is explained."""

    def __init__(self, cluster):
        self.cluster, self.path = cluster, f"/api/v1/namespaces/{NS}/pods"
        self.budget = f"/apis/policy/v1/namespaces/{NS}/poddisruptionbudgets/{cluster.prefix}-{cluster.name}"
        self.accepted, self.refused, self.reasons, self.unexplained = [], 0, set(), []

    def evict(self, pod):
        """Posts an eviction, and returns the answer: code, headers, body."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NS}}
        return request("POST", f"{self.path}/{pod}/eviction", body)

    def once(self):
        """Every pod that was started, first those that went least often. Of one that was not started, Kubernetes asks no budget."""
        went = [name for _, name in self.accepted]
        for pod in sorted(request("GET", self.path)[2]["items"], key=lambda pod: went.count(pod["metadata"]["name"])):
            name = pod["metadata"]["name"]
            if pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"]:
                continue
            code, _, answer = self.evict(name)
            if code == 201:
                self.accepted.append((time.monotonic(), name))
                say(f"    {name} is evicted")
            elif code == 429:
                self.refused += 1
                self.explain(name)
            else:
                claim("an eviction is accepted or refused", code == 404, (code, answer))

    def explain(self, name):
        budget = request("GET", self.budget)[2]
        why = budget["metadata"].get("annotations", {}).get(WHY)
        if why:
            self.reasons.add(why.partition(":")[0])
            return
        # A closed budget counts only when Kubernetes has seen its newest form, and no pod was evicted in the last 10 s.
        seen = budget.get("status", {})
        counts = seen.get("observedGeneration") == budget["metadata"]["generation"] and not seen.get("disruptionsAllowed")
        if counts and not (self.accepted and time.monotonic() - self.accepted[-1][0] < 10):
            self.unexplained.append((name, budget["spec"], seen))

    def last(self, seconds):
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.once()
            time.sleep(0.2)
        nodes = [name for _, name in self.accepted]
        say(f"    {len(nodes)} accepted, {self.refused} refused, for {sorted(self.reasons)}")
        claim("some evictions were accepted, and most refused", nodes and self.refused > len(nodes), (nodes, self.refused))
        claim("each refused one was explained", not self.unexplained, self.unexplained[:5])
        if len(nodes) >= 3:
            claim("each of the three went", len(set(nodes)) == 3, nodes)


def one_budget(cluster, least):
    """Waits until a cluster may be drained; its budget is the only one, and lets one node go."""
    cluster.tells("Drainable", "True", "MayLeave", 180)

    def check():
        budgets = cluster.get("pdb")
        seen = {budget["metadata"]["name"]: (budget["spec"].get("minAvailable"), budget["status"]["disruptionsAllowed"]) for budget in budgets}
        return seen == {f"{cluster.prefix}-{cluster.name}": (least, 1)} or json.dumps(seen)
    cluster.wait("one budget, which lets one node go", check, 60)


def racks():
    """Cassandra of three racks, each a pool of one node, and a keyspace with a copy in each."""
    three = Cassandra(NS, "racks")
    with step("a Cassandra of three racks"):
        three.apply(pools(three, "abc"))
        three.ready(nodes=3, deadline=1500)
        one_budget(three, 2)
        three.write(100, copies=3)
    with step(f"each of its pods is evicted without pause for {SECONDS} s, while a client writes and reads at QUORUM"):
        with QuorumClient(addresses_of(three), 100) as client:
            Evictions(three).last(SECONDS)
            three.ready(nodes=3, deadline=600)
        say(f"    {client.done} requests, {client.retried} of them tried again, the slowest took {client.longest:.1f} s")
        claim("no request failed at QUORUM after one retry", client.done > 20 and not client.failed, client.failed[:5])
        one_budget(three, 2)
    with step("every acknowledged row is there"):
        missing = client.missing()
        claim(f"all {len(client.acknowledged)} rows are read at QUORUM", not missing, missing[:10])
    three.delete()
    three.pods_are_gone(400)


class Health(threading.Thread):
    """Asks each second, whichever node answers, and writes a document."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.addresses = addresses_of(cluster)
        self.seen, self.acknowledged, self.refused = {}, set(), 0
        self.ends = threading.Event()

    def run(self):
        number = 0
        while not self.ends.is_set():
            number += 1
            color = "unreachable"
            written = False
            for address in self.addresses():
                node = Node(address)
                try:
                    if color == "unreachable":
                        code, answer = node.ask("GET", "/_cluster/health?timeout=1s&master_timeout=1s", timeout=3)
                        color = answer["status"] if code == 200 else "unreachable"
                    if not written:
                        code, _ = node.ask("PUT", f"/{INDEX}/_doc/{number}?timeout=10s", {"number": number}, timeout=15)
                        written = code in (200, 201)
                except OSError:
                    pass
            self.seen[color] = self.seen.get(color, 0) + 1
            self.refused += not written
            if written:
                self.acknowledged.add(number)
            self.ends.wait(1)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join(timeout=60)


def documents(name, names, replicas):
    """Elasticsearch of three nodes, and an index with two copies of each shard."""
    three = Elasticsearch(NS, name)
    first = f"{three.prefix}-{name}-{names[0]}-0"

    def ask(method, path, body=None):
        return Node(three.get("pod", first)["status"]["podIP"]).ask(method, path, body)
    with step(f"an Elasticsearch of three nodes in pools {names}"):
        three.apply(pools(three, names, replicas))
        three.ready(nodes=3, deadline=900)
        one_budget(three, 2)
        ask("PUT", "/_cluster/settings", {"persistent": {"cluster.routing.allocation.disk.threshold_enabled": False}})
        made = ask("PUT", f"/{INDEX}", {"settings": {"number_of_shards": 6, "number_of_replicas": 1}})
        claim("the index is made", made[0] == 200, made)

        def green():
            try:
                health = ask("GET", "/_cluster/health")[1]
            except OSError as error:
                return f"it does not answer: {error}"
            return health.get("status") == "green" or json.dumps(health)
        three.wait("it is green", green, 180)
    with step(f"each of its pods is evicted without pause for {SECONDS} s"):
        with Health(three) as health:
            Evictions(three).last(SECONDS)
            three.ready(nodes=3, deadline=600)
            three.wait("it is green", green, 180)
        say(f"    seconds: {health.seen}; {len(health.acknowledged)} documents acknowledged, {health.refused} refused")
        claim("it was red for no second", "red" not in health.seen, health.seen)
        one_budget(three, 2)
    with step("every acknowledged document is there"):
        ids = [str(number) for number in sorted(health.acknowledged)]
        found = {doc["_id"] for doc in ask("POST", f"/{INDEX}/_mget", {"ids": ids})[1]["docs"] if doc.get("found")}
        claim(f"all {len(ids)} documents are there", found == set(ids), sorted(set(ids) - found)[:10])
    three.delete()
    three.pods_are_gone(300)


def alone():
    """A cluster of one node holds no machine up."""
    one = Cassandra(NS, "alone")
    with step("a cluster of one node is evicted at once, and comes back"):
        one.apply(one.manifest(1))
        one.ready()
        one.tells("Drainable", "True", "MayLeave", 60)
        uid = one.pod_uid()
        one.wait("it is evicted", lambda: Evictions(one).evict(one.pod_name())[0] == 201 or "refused", 60)
        one.wait("another pod", lambda: one.pod_uid() != uid or uid)
        one.ready()
    one.delete()
    one.pods_are_gone(300)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    racks()
    documents("zones", "abc", 1)
    documents("pool", "a", 3)
    alone()
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
