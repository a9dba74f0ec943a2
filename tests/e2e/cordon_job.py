"""`kubectl navigator drain MACHINE` and `--cancel`, again and again, under clients: all nodes of a cluster are on that machine, one goes and waits for it, and no
second one goes meanwhile. Then all nodes are restarted where two of a pool may be away.

CORDON_RUNS drains of three nodes (2), a quarter of them of two datacenters, and as many restarts of each; CORDON_SECONDS is how long each drain is watched.
CORDON_OF names what is tried: drains of `three` nodes or of `datacenters`, `restarts` of three nodes or `restarts-datacenters`; CORDON_DATABASES with which. Not part of
CI: `make e2e-cordons`.
"""
import contextlib
import json
import os
import subprocess
import time
from datetime import datetime, timezone

from absences import Absences
from bed import JOB, LOGS, Failed, claim, get, keep_logs, kubectl, main, say, step
from cluster import Cassandra, Elasticsearch
from cql import QuorumClient
from es import Client
from navigator import install
from plugin import Plugin

RUNS = int(os.environ.get("CORDON_RUNS", "2"))
FEW = max(1, RUNS // 4)
SECONDS = int(os.environ.get("CORDON_SECONDS", "60"))
OF = os.environ.get("CORDON_OF", "three restarts datacenters restarts-datacenters").split()
DATABASES = os.environ.get("CORDON_DATABASES", "elasticsearch cassandra").split()
INDEX = "kept"
BOTH = {"dc1": 3, "dc2": 3}
# What was found, by run: a run that fails keeps none from being tried.
FAULTS = []


class Tried:
    """A cluster with its client, and groups of nodes of which one at most may be away."""

    def __init__(self, cluster, groups, client, settled=lambda: True):
        self.cluster, self.groups, self.client, self.settled = cluster, groups, client, settled
        self.nodes = [node for nodes in groups.values() for node in nodes]

    def ready(self, deadline=900):
        """Waits until all serve, and one of them may leave."""
        self.cluster.ready(nodes=len(self.nodes), deadline=deadline)
        self.cluster.wait("every copy is there", self.settled, deadline)
        self.cluster.tells("Drainable", "True", "MayLeave", deadline)

    def restart(self):
        """Lets two nodes be away, and has each restart. Nodes of several datacenters get new pods that take a minute to start: a second node may go when
        its pilot has looked for half a minute while the first one is away, and in its pod a small node is back before."""
        now, most = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), {"maxUnavailable": 2}
        if len(self.groups) == 1:
            return self.cluster.patch(updateStrategy=most, restartedAt=now)
        image = get("pod", self.nodes[0], "-n", self.cluster.namespace)["spec"]["containers"][0]["image"]
        slow = {"name": "slow", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "60"], "env": [{"name": "SINCE", "value": now}]}
        self.cluster.patch(updateStrategy=most, podTemplate={"spec": {"initContainers": [slow]}})

    def ended(self):
        """Claims about the client, once it was stopped."""
        say(f"    {self.client.figures()}")
        colors = getattr(self.client, "seen", {})
        claim("it was never red", "red" not in colors, colors)
        claim("no request failed after one retry", self.client.done > 100 and not self.client.failed, self.client.failed[:5])
        missing = self.client.missing()
        claim(f"all {len(self.client.acknowledged)} that were acknowledged are there", not missing, missing[:10])


def documents(name="documents"):
    """Three nodes of Elasticsearch in one pool, and an index with two copies of each shard."""
    three = Elasticsearch(name)
    kubectl("create", "namespace", name)
    three.apply(three.manifest(3))

    def green():
        for node in range(3):
            try:
                health = three.client(node).ask("GET", "/_cluster/health")[1]
            except (OSError, KeyError, TypeError):
                continue
            return (health.get("status"), health.get("number_of_nodes")) == ("green", 3) or json.dumps(health)
        return "it does not answer"

    def begin():
        three.ready(nodes=3, deadline=900)
        three.ignore_disk()
        made = three.ask("PUT", f"/{INDEX}", {"settings": {"number_of_shards": 6, "number_of_replicas": 1}})
        claim("the index is made", made[0] == 200, made)
    tried = Tried(three, {name: [three.pod_name(node) for node in range(3)]}, Client(three.addresses(), INDEX), green)
    return tried, begin


def rows(name, pools, replicas, copies, groups, datacenter=None):
    """A Cassandra and a keyspace. `pools`: the datacenter of each, or None."""
    ring = Cassandra(name)
    kubectl("create", "namespace", name)
    # (as little memory as several nodes on one machine need)
    thing = ring.pools(pools, replicas, resources={"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1536Mi"}})
    for pool in thing["spec"]["nodePools"]:
        if pools[pool["name"]]:
            pool |= {"datacenter": pools[pool["name"]], "rack": "r1"}
    ring.apply(thing)
    named = {group: [ring.node(pool, ordinal) for pool in of for ordinal in range(replicas)] for group, of in groups.items()}
    nodes = sum(named.values(), [])
    near = named[datacenter] if datacenter else None

    def begin():
        ring.ready(nodes=len(nodes), deadline=2400)
        with ring.client() as session:
            session.write(100, copies=copies)
    ring.set = f"cass-{ring.name}-{next(iter(pools))}"
    return Tried(ring, named, QuorumClient(ring.addresses(near), 100, datacenter=datacenter)), begin


def evidence(number):
    """Logs of this moment."""
    logs = LOGS / JOB / f"run-{number}-{datetime.now(timezone.utc).strftime('%H%M%S')}"
    with contextlib.suppress(subprocess.TimeoutExpired):
        keep_logs(logs)
    say(f"    logs of this moment are in {logs}")


def judged(what, watches, clients):
    """Adds to FAULTS what a run did that it may not."""
    for one in watches:
        for _, group, away in one.violations:
            FAULTS.append(f"{what}: {len(away)} nodes of {group} were away: {away}; {'; '.join(one.history)}")
        if one.violations:
            evidence(what.replace(" ", "-"))
    for client, before in clients:
        if client.failed[before:]:
            FAULTS.append(f"{what}: {client.failed[before:]}")
            say(f"    failed: {client.failed[before:]}")


def drained(number, machine, plugin, tried):
    """One drain, and its end; begun when all is as it was."""
    for one in tried:
        one.ready()
    failed = [(one.client, len(one.client.failed)) for one in tried]
    watches = [Absences(one.cluster.namespace, one.groups) for one in tried]
    begun = time.monotonic()
    for watch in watches:
        watch.__enter__()
    try:
        said = plugin.says(0, "drain", machine)
        went = {}
        while (passed := time.monotonic() - begun) < SECONDS or (len(went) < len(tried) and passed < 600):
            for one, watch in zip(tried, watches):
                for node in watch.away():
                    if node in one.nodes:
                        went.setdefault(one.cluster.namespace, (node, round(time.monotonic() - begun)))
            time.sleep(0.5)
        claim("of each cluster one node went", len(went) == len(tried), (went, said))
        held = {one.cluster.namespace: sorted(set(one.nodes) & set(watch.away())) for one, watch in zip(tried, watches)}
        plugin.says(0, "drain", machine, "--cancel")
        begun = time.monotonic()
        for one in tried:
            one.ready()
        took = time.monotonic() - begun
        most = {group: number_ for watch in watches for group, number_ in watch.together.items()}
        say(f"    drain {number}: {went} (seconds until it was away); away at its end: {held}; Ready {took:.0f} s after --cancel; most away: {most}; "
            f"tried again until now: {[one.client.retried for one in tried]}")
    except Failed:
        plugin.run("drain", machine, "--cancel")
        raise
    finally:
        for watch in watches:
            watch.__exit__()
        judged(f"drain {number}", watches, failed)


def restarted(number, tried):
    """All nodes are restarted, where two of a pool may be away; begun when all is as it was."""
    for one in tried:
        one.ready()
    failed = [(one.client, len(one.client.failed)) for one in tried]
    watches = [Absences(one.cluster.namespace, one.groups) for one in tried]
    for watch in watches:
        watch.__enter__()
    try:
        before = [one.cluster.processes() for one in tried]
        begun = time.monotonic()
        for one in tried:
            one.restart()
        for one, processes in zip(tried, before):
            one.cluster.other_processes(processes, 1800)
        for one in tried:
            one.ready(1800)
        most = {group: number_ for watch in watches for group, number_ in watch.together.items()}
        at_once = [watch.at_once for watch in watches]
        for one, watch in zip(tried, watches):
            claim("one node of each datacenter was away at the same time", watch.at_once == len(one.groups), at_once)
        say(f"    restart {number}: {time.monotonic() - begun:.0f} s; most away: {most}, groups at once: {at_once}; "
            f"tried again until now: {[one.client.retried for one in tried]}")
    finally:
        for watch in watches:
            watch.__exit__()
        judged(f"restart {number}", watches, failed)


def each(what, number, act):
    """Tries something so often; a run that fails is kept with its logs."""
    for run in range(1, number + 1):
        with step(f"{what} {run} of {number}"):
            try:
                act(run)
            except Failed as error:
                say(f"    FAULT: {error}")
                FAULTS.append(f"{what} {run}: {error}")
                evidence(f"{what}-{run}".replace(" ", "-"))


def under_clients(made, act):
    """Does something to clusters under their clients, judges these, and removes the clusters."""
    tried = [one for one, _ in made]
    with step(f"clusters: {[one.cluster.namespace for one in tried]}"):
        for one, begin in made:
            begin()
            one.ready()
    for one in tried:
        one.client.start()
    act(tried)
    for one in tried:
        one.client.__exit__()
        with step(f"all that {one.cluster.namespace} acknowledged"):
            one.ready()
            try:
                one.ended()
            except Failed as error:
                FAULTS.append(f"{one.cluster.namespace}: {error}")
    for one in tried:
        kubectl("delete", "namespace", one.cluster.namespace, timeout=1000)


def job():
    with step("install"):
        install()
    machine, plugin = get("nodes")[0]["metadata"]["name"], Plugin()

    def drains(number):
        return lambda tried: each("drain", number, lambda run: drained(run, machine, plugin, tried))

    def restarts(tried):
        each("restart where two may be away", FEW, lambda run: restarted(run, tried))
    def chosen(elasticsearch, cassandra):
        return [make() for name, make in (("elasticsearch", elasticsearch), ("cassandra", cassandra)) if name in DATABASES]
    if "three" in OF:
        under_clients(chosen(documents, lambda: rows("racks", dict.fromkeys("abc"), 1, 3, {"racks": "abc"})), drains(RUNS))
    if "restarts" in OF:
        one_pool = ("restarts-cass", {"a": None}, 3, 3, {"restarts-cass": "a"})
        under_clients(chosen(lambda: documents("restarts-es"), lambda: rows(*one_pool)), restarts)
    acts = [act for name, act in (("datacenters", drains(FEW)), ("restarts-datacenters", restarts)) if name in OF]
    if acts and "cassandra" in DATABASES:
        def each_act(tried):
            for act in acts:
                act(tried)
        under_clients([rows("datacenters", {"one": "dc1", "two": "dc2"}, 3, BOTH, {"dc1": ["one"], "dc2": ["two"]}, "dc2")], each_act)
    claim("no run found a fault", not FAULTS, "\n".join(FAULTS))


if __name__ == "__main__":
    main(job)
