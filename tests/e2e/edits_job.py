"""What people ask of a Cassandra, and take back: a scale-in that is held, a departure of a node in the middle, a stop with a node that cannot start.

A client writes and reads at QUORUM, but while the cluster is stopped. Not part of CI: `make e2e-edits`.
"""
import json
import time

from bed import claim, kubectl, main, say, step
from cluster import Cassandra
from cql import QuorumClient
from navigator import install
from plugin import Plugin

NS = "edits"
RING = Cassandra(NS, "ring")
ROWS = 2_000
DATACENTER = "navigator-default-datacenter"


def blocked(predicate, deadline=300):
    """Waits until this rule holds a step; returns what is said of it."""
    def check():
        found = RING.status().get("operation", {}).get("blockedBy", [])
        return [one for one in found if one["predicate"] == predicate] or json.dumps(RING.status())
    found = RING.wait(f"{predicate} to hold", check, deadline)[0]
    say(f"    {predicate}: {found.get('message')}; {found.get('hint')}")
    return found


def processes():
    """Which process of which pod each node runs."""
    return {name: json.dumps(pilot["status"].get("process"), sort_keys=True) for name, pilot in RING.pilots().items()}


def ring_is(nodes):
    addresses = sorted(RING.address(node) for node in nodes)

    def check():
        with RING.client(nodes[0]) as session:
            seen = session.nodes()
        return seen == addresses or f"{seen}, and not {addresses}"
    RING.wait(f"a ring of nodes {nodes}", check)


def under_client(first, scenario):
    """Runs a scenario under a client; returns the next number of a row."""
    with QuorumClient(RING.addresses(), first) as client:
        scenario()
    say(f"    {client.figures()}")
    claim("no request failed at QUORUM after one retry", client.done > 20 and not client.failed, client.failed[:5])
    missing = client.missing()
    claim(f"all {len(client.acknowledged)} rows that were written meanwhile are read at QUORUM", not missing, missing[:10])
    RING.has_rows(ROWS)
    return client.next


def held_scale_in():
    """Three copies of each row on three nodes: none may leave."""
    before = processes()
    RING.scale(2)
    told = blocked("ReplicationFactor")
    claim("the keyspace is named", "shop" in told["message"], told)
    begun = time.monotonic()
    RING.scale(3)
    RING.ready(nodes=3)
    say(f"    Ready {time.monotonic() - begun:.0f} s after it was taken back")
    claim("no database was stopped", processes() == before, (before, processes()))
    claim("no rule holds anything", not RING.status().get("operation"), RING.status().get("operation"))
    ring_is([0, 1, 2])


def middle_node_leaves():
    """A person tells the middle one of three to leave, and has it back after it left."""
    with RING.client() as session:
        session.session.execute(f"ALTER KEYSPACE shop WITH replication = {{'class': 'NetworkTopologyStrategy', '{DATACENTER}': 2}}")
    middle, volume = RING.pod_name(1), RING.get("pvc", RING.claim_name(1))["metadata"]["uid"]

    def phase(wanted):
        kubectl("patch", "pilot", "-n", NS, middle, "--type", "merge", "-p", json.dumps({"spec": {"phase": wanted}}))
    begun = time.monotonic()
    phase("Decommissioned")

    def left():
        status = RING.pilot(1)["status"]
        return status.get("phase") == "Decommissioned" or json.dumps(status.get("conditions"))
    RING.wait("it has left", left, 600)
    say(f"    it left after {time.monotonic() - begun:.0f} s")
    ring_is([0, 2])
    told = blocked("PhaseHeld")
    claim("the way back is told", middle in told["hint"] and "Running" in told["hint"], told)
    begun = time.monotonic()
    phase("Running")
    RING.ready(nodes=3, deadline=900)
    say(f"    Ready {time.monotonic() - begun:.0f} s after the phase was set back")
    claim("it has another volume", RING.get("pvc", RING.claim_name(1))["metadata"]["uid"] != volume, volume)
    ring_is([0, 1, 2])
    received = RING.pilot(1)["status"]["cassandra"].get("bootstrapBytesReceived", 0)
    claim("the others gave it rows", received > 0, received)
    say(f"    {received} bytes received")


def stopped_and_started(plugin, what, break_it, broken, mend):
    """A node that cannot start does not keep the others from stopping, nor from starting again."""
    with step(f"stop with a node that cannot start: {what}"):
        break_it()
        say(f"    {RING.wait('a node that cannot start', broken, 400)}")
        begun = time.monotonic()
        plugin.says(0, "stop", RING.name)
        RING.wait("the cluster is Stopped", lambda: RING.status().get("phase") == "Stopped" or json.dumps(RING.status()), 400)
        RING.pods_are_gone(300)
        say(f"    Stopped, and no pod, after {time.monotonic() - begun:.0f} s")
        claim("all claims are there", RING.names("pvc") == [RING.claim_name(node) for node in range(3)], RING.names("pvc"))
    with step("mended and started: every row"):
        mend()
        begun = time.monotonic()
        plugin.says(0, "start", RING.name)
        RING.ready(nodes=3, deadline=900)
        say(f"    Ready after {time.monotonic() - begun:.0f} s")
        ring_is([0, 1, 2])
        RING.has_rows(ROWS)


def crashes():
    for name, pilot in RING.pilots().items():
        if pilot["status"].get("phase") == "Failed" and pilot["status"].get("lastTermination"):
            return [f"{name}: {json.dumps(pilot['status']['lastTermination'])[:200]}"]
    return json.dumps({name: pilot["status"].get("phase") for name, pilot in RING.pilots().items()})


def unpulled():
    told = RING.told("Stalled")
    return [told] if told and told[1] == "ImagePullFailed" else str(told)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    plugin = Plugin(NS)
    with step(f"a Cassandra of three nodes, and {ROWS} rows with three copies"):
        RING.apply(RING.manifest(3))
        RING.ready(nodes=3, deadline=1500)
        RING.write(ROWS, copies=3)
    with step("a scale-in that the replication factor forbids is taken back"):
        first = under_client(ROWS, held_scale_in)
    heap, image = RING.spec()["jvm"]["heap"], RING.spec().get("image")
    stopped_and_started(plugin, "Java refuses its options",
                        lambda: RING.patch(jvm={"heap": heap, "options": ["-XX:NoSuchOption=1"]}), crashes,
                        lambda: RING.patch(jvm={"heap": heap, "options": None}))
    stopped_and_started(plugin, "no registry has its image",
                        lambda: RING.patch(image={"repository": "registry.invalid/cassandra", "tag": "none"}), unpulled,
                        lambda: RING.patch(image=image))
    with step("a person has the middle node leave, and takes that back after it left"):
        under_client(first, middle_node_leaves)
    kubectl("delete", "namespace", NS, timeout=1000)


if __name__ == "__main__":
    main(job)
