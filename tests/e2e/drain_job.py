"""Machines are drained: every pod of a cluster is evicted whenever its budget allows it, without pause, while a client uses the database.

A minute each by default; DRAIN_SECONDS=300 for longer. Not part of CI: `make e2e-drains`.
"""
import json
import os
import time

from bed import claim, kubectl, main, say, step
from cluster import Cassandra, Elasticsearch
from cql import QuorumClient
from es import Client, Node
from navigator import install
from plugin import Plugin
from raw import request

NS = "drained"
SECONDS = int(os.environ.get("DRAIN_SECONDS", "60"))
WHY = "navigator.jetstack.io/drainable-why"
INDEX = "kept"


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

    def once(self, spared=()):
        """Every pod that was started, first those that went least often. Of one that was not started, Kubernetes asks no budget."""
        went = [name for _, name in self.accepted]
        for pod in sorted(request("GET", self.path)[2]["items"], key=lambda pod: went.count(pod["metadata"]["name"])):
            name = pod["metadata"]["name"]
            if pod["status"].get("phase") != "Running" or "deletionTimestamp" in pod["metadata"] or name in spared:
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
        ends, nodes = time.monotonic() + seconds, []
        # The budget opens at any moment, and whichever is asked next goes: on a slow machine one may not have had its turn yet.
        while (left := ends - time.monotonic()) > 0 or (len(set(nodes)) < 3 and left > -900):
            self.once(spared=nodes if left < 0 else ())
            nodes = [name for _, name in self.accepted]
            time.sleep(0.2)
        say(f"    {len(nodes)} accepted, {self.refused} refused, for {sorted(self.reasons)}")
        claim("some evictions were accepted, and most refused", nodes and self.refused > len(nodes), (nodes, self.refused))
        claim("each refused one was explained", not self.unexplained, self.unexplained[:5])
        claim("each of the three went", len(set(nodes)) == 3, nodes)


def one_budget(cluster, least):
    """Waits until a cluster may be drained; its budget is the only one, and lets one node go."""
    cluster.tells("Drainable", "True", "MayLeave")

    def check():
        budgets = cluster.get("pdb")
        seen = {budget["metadata"]["name"]: (budget["spec"].get("minAvailable"), budget["status"]["disruptionsAllowed"]) for budget in budgets}
        return seen == {f"{cluster.prefix}-{cluster.name}": (least, 1)} or json.dumps(seen)
    cluster.wait("one budget, which lets one node go", check)


def racks():
    """Cassandra of three racks, each a pool of one node, and a keyspace with a copy in each."""
    three = Cassandra(NS, "racks")
    with step("a Cassandra of three racks"):
        three.apply(three.pools("abc"))
        three.ready(nodes=3, deadline=1500)
        one_budget(three, 2)
        three.write(100, copies=3)
    with step(f"each of its pods is evicted without pause for {SECONDS} s, while a client writes and reads at QUORUM"):
        with QuorumClient(three.addresses(), 100) as client:
            Evictions(three).last(SECONDS)
            three.ready(nodes=3, deadline=600)
        say(f"    {client.figures()}")
        claim("no request failed at QUORUM after one retry", client.done > 20 and not client.failed, client.failed[:5])
        one_budget(three, 2)
    with step("every acknowledged row is there"):
        missing = client.missing()
        claim(f"all {len(client.acknowledged)} rows are read at QUORUM", not missing, missing[:10])
    three.delete()
    three.pods_are_gone(400)


def documents(name, names, replicas):
    """Elasticsearch of three nodes, and an index with two copies of each shard."""
    three = Elasticsearch(NS, name)
    first = f"{three.prefix}-{name}-{names[0]}-0"

    def ask(method, path, body=None):
        return Node(three.get("pod", first)["status"]["podIP"]).ask(method, path, body)
    with step(f"an Elasticsearch of three nodes in pools {names}"):
        three.apply(three.pools(names, replicas))
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
        three.wait("it is green", green)
    with step(f"each of its pods is evicted without pause for {SECONDS} s"):
        with Client(three.addresses(), INDEX) as client:
            Evictions(three).last(SECONDS)
            three.ready(nodes=3, deadline=600)
            three.wait("it is green", green)
        say(f"    {client.figures()}")
        claim("it was never red", "red" not in client.seen, client.seen)
        claim("no request failed after one retry", client.done > 20 and not client.failed, client.failed[:5])
        one_budget(three, 2)
    with step("every acknowledged document is there"):
        missing = client.missing()
        claim(f"all {len(client.acknowledged)} documents are there", not missing, missing[:10])
    three.delete()
    three.pods_are_gone(300)


def alone():
    """A cluster of one node holds no machine up."""
    one = Cassandra(NS, "alone")
    with step("a cluster of one node is evicted at once, and comes back"):
        one.apply(one.manifest(1))
        one.ready()
        one.tells("Drainable", "True", "MayLeave")
        uid = one.pod_uid()
        one.wait("it is evicted", lambda: Evictions(one).evict(one.pod_name())[0] == 201 or "refused")
        one.wait("another pod", lambda: one.pod_uid() != uid or uid)
        one.ready()
    one.delete()
    one.pods_are_gone(300)


def machine_is_emptied(two):
    """Both nodes are on the one machine, and each row has one copy: no quorum keeps the second node when the first is away."""
    plugin, machine = Plugin(NS), two.pod()["spec"]["nodeName"]
    before = {two.pod_uid(node) for node in (0, 1)}
    begun = time.monotonic()
    drained = plugin.run("drain", machine, "--wait", "--deadline", "600", timeout=660)
    said = drained.stdout + drained.stderr
    claim("kubectl navigator drain --wait ends well", drained.returncode == 0, said)
    claim("it said when each node left", said.count("has left") == 2, said)
    say(f"    empty after {time.monotonic() - begun:.0f} s")

    def waiting():
        pods = two.pods()
        new = [pod for pod in pods if not pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in before]
        return len(new) == 2 or json.dumps([(pod["metadata"]["name"], pod["status"]) for pod in pods])
    two.wait("both have another pod, which waits for the machine", waiting)
    told = two.tells("Ready", "False", "PredicateBlocked")
    claim("the cluster says why", f"machine {machine}" in told and "is cordoned" in told, told)
    claim("it is not Stalled by that", not two.told("Stalled"), two.told("Stalled"))
    said = plugin.says(0, "drain", machine, "--cancel")
    claim("the machine is uncordoned", f"node/{machine} uncordoned" in said, said)


def both_leave():
    """Two nodes on one machine, which a person empties by the plugin."""
    two, rows = Cassandra(NS, "both", mode=None), 1_000
    with step("a Cassandra of two nodes"):
        two.apply(two.manifest(2))
        two.ready(nodes=2)
        two.write(rows)
    with step("kubectl navigator drain empties the machine; --cancel, and both nodes are back with their rows"):
        machine_is_emptied(two)
        two.ready(nodes=2)
        two.has_rows(rows)
    two.delete()
    two.pods_are_gone(300)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    racks()
    documents("zones", "abc", 1)
    documents("pool", "a", 3)
    alone()
    both_leave()
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
