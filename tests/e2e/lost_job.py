"""Machines that are lost for good, with their disks, under a client that writes and reads at QUORUM: a node is given up and joins anew; a rack is
taken out of the spec, given up, held until the first one is repaired, forgotten by the ring, and added again.

Not part of CI: `make e2e-lost`.
"""
import json
import time

from bed import claim, kubectl, main, say, step
from cluster import Cassandra
from cql import QuorumClient, Session
from navigator import install
from plugin import Plugin

NS = "lost"
THREE = Cassandra(NS, "racks")
ROWS = 2_000


def ring_is(nodes):
    """The ring has these nodes and no other, as each of them counts."""
    addresses = sorted(THREE.get("pod", node)["status"]["podIP"] for node in nodes)

    def check():
        seen = []
        for address in addresses:
            with Session(address) as session:
                seen.append(session.nodes())
        return all(one == addresses for one in seen) or json.dumps([addresses, seen])
    THREE.wait(f"a ring of {len(nodes)} nodes", check)


def came_back(node):
    """A node without data of its own got them from the others."""
    received = (THREE.get("pilot", node)["status"].get("cassandra") or {}).get("bootstrapBytesReceived", 0)
    say(f"    {node} received {received} bytes")
    # (rows of equal letters are packed small)
    claim("the others gave it the rows", received > ROWS * 20, received)
    with Session(THREE.get("pod", node)["status"]["podIP"]) as session:
        found = session.read(ROWS)
    claim(f"all {ROWS} rows are read through it", found == ROWS, found)


def node_is_given_up(plugin):
    node = THREE.node("b")
    with step("a node is lost with its volume: told"):
        data = THREE.lose(node)
        line = THREE.says("FailedMount")
        claim("it names the node", node in line, line)
    with step("the word that gives it up is told"):
        THREE.says(f"give-up={data}")
    with step("a word about other data has no effect"):
        wrong = "00000000-0000-0000-0000-000000000000"
        said = plugin.run("give-up", THREE.name, "b-0", "--data", wrong)
        say(f"    {(said.stdout + said.stderr).strip()}")
        claim("it does not say that the node is given up", " given up" not in said.stdout, said.stdout)
        THREE.is_looked_at_again()
        there = THREE.get("pvc", f"{THREE.volume}-{node}")
        claim("its claim is there", there and there["metadata"]["uid"] == data and "deletionTimestamp" not in there["metadata"], there)
    with step("kubectl navigator give-up: it joins anew"):
        begun = time.monotonic()
        plugin.give_up(THREE, "b-0", data)
        THREE.ready(nodes=3, deadline=900)
        say(f"    Ready after {time.monotonic() - begun:.0f} s")
        other = THREE.get("pvc", f"{THREE.volume}-{node}")["metadata"]["uid"]
        claim("it has another volume", other != data, data)
        ring_is([THREE.node(pool) for pool in "abc"])
        came_back(node)


def rack_is_given_up(plugin):
    node = THREE.node("c")
    with step("a rack is lost, and taken out of the spec: told that its node stays"):
        data = THREE.lose(node)
        THREE.apply(THREE.pools("ab"))
        line = THREE.says("it may hold data, so it leaves only once it serves")
        claim("it names the node", node in line, line)
    with step("the word that gives it up is told"):
        THREE.says(f"give-up={data}")
    behind = THREE.node("b")
    with step("kubectl navigator give-up waits for the repair of the node that joined anew"):
        plugin.give_up(THREE, "c-0", data)
        line = THREE.says(f"it may lack writes that {node} has")
        claim("it names the node", behind in line, line)
        THREE.says(f"exec {behind} -c cassandra -- nodetool repair -full --force")
        claim("the cluster is not repaired", THREE.told("Repaired")[:2] == ("False", "ReplicaBehind"), THREE.told("Repaired"))
    with step("nodetool repair -full --force beside the lost node, and its report"):
        kubectl("exec", "-n", NS, behind, "-c", "cassandra", "--", "nodetool", "repair", "-full", "--force", timeout=900)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kubectl("annotate", "pilot", "-n", NS, behind, f"navigator.jetstack.io/repaired={now}")
    with step("kubectl navigator give-up: it goes, and the ring forgets it"):
        THREE.wait("its Pilot is gone", lambda: THREE.get("pilot", node) is None or "still there", 400)
        THREE.ready(nodes=2, deadline=600)
        THREE.wait("it is Green", lambda: THREE.status().get("health") == "Green" or json.dumps(THREE.status()), 300)
        ring_is([THREE.node(pool) for pool in "ab"])
        claim("no node is behind", THREE.told("Repaired") is None, THREE.told("Repaired"))
        claim("its StatefulSet is gone", THREE.names("statefulset") == [f"cass-{THREE.name}-{pool}" for pool in "ab"], THREE.names("statefulset"))
    with step("the rack is added again"):
        begun = time.monotonic()
        THREE.apply(THREE.pools("abc"))
        THREE.ready(nodes=3, deadline=900)
        say(f"    Ready after {time.monotonic() - begun:.0f} s")
        ring_is([THREE.node(pool) for pool in "abc"])
        came_back(node)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    plugin = Plugin(NS)
    with step(f"a Cassandra of three racks, and {ROWS} rows with a copy in each"):
        THREE.apply(THREE.pools("abc"))
        THREE.ready(nodes=3, deadline=1500)
        THREE.write(ROWS, copies=3)
    with QuorumClient(THREE.addresses(), ROWS) as client:
        node_is_given_up(plugin)
        rack_is_given_up(plugin)
    say(f"    {client.figures()}")
    claim("no request failed at QUORUM after one retry", client.done > 100 and not client.failed, client.failed[:5])
    with step("every row is there"):
        missing = client.missing()
        claim(f"all {len(client.acknowledged)} rows that were written meanwhile are read at QUORUM", not missing, missing[:10])
        THREE.has_rows(ROWS)
    kubectl("delete", "namespace", NS, timeout=1000)


if __name__ == "__main__":
    main(job)
