"""Two of three masters of Elasticsearch are lost for good, with their disks: the one that is left begins the cluster anew, on a person's word.

Not part of CI: `make e2e-lost`.
"""
import json
import time

from bed import claim, kubectl, main, say, step
from cluster import Elasticsearch
from es import INDEX
from navigator import install
from plugin import Plugin

NS = "voters"
THREE = Elasticsearch(NS, "three")
LEFT, LOST = THREE.node("a"), [THREE.node("b"), THREE.node("c")]
DOCUMENTS = 2_000


def green(nodes):
    def check():
        health = THREE.ask("GET", "/_cluster/health")[1]
        return (health.get("status"), health.get("number_of_nodes")) == ("green", nodes) or json.dumps(health)
    THREE.wait(f"green with {nodes} nodes", check, 400)


def word():
    return THREE.get("pilot", LEFT)["metadata"].get("annotations", {}).get("navigator.jetstack.io/unsafe-bootstrap")


def serves_alone():
    try:
        code, health = THREE.ask("GET", "/_cluster/health")
    except OSError as error:
        return str(error)
    return code == 200 and (health["number_of_nodes"], health["status"] != "red") == (1, True) or json.dumps([code, health])


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    plugin = Plugin(NS)
    with step(f"an Elasticsearch of three masters, and {DOCUMENTS} documents with a copy on each"):
        THREE.apply(THREE.pools("abc"))
        THREE.ready(nodes=3, deadline=900)
        THREE.ignore_disk()
        THREE.fill(DOCUMENTS, shards=3)
        THREE.ask("PUT", f"/{INDEX}/_settings", {"index.number_of_replicas": 2})
        green(3)
        identity = THREE.get("pilot", LEFT)["status"]["identity"]["clusterID"]
    with step("two are lost with their volumes: told, with the way out"):
        refused = plugin.run("unsafe-bootstrap", THREE.name, "a-0", "--cluster-id", identity)
        claim("while it serves, the word is refused", refused.returncode != 0 and word() is None, refused.stdout + refused.stderr)
        data = {node: THREE.lose(node) for node in LOST}
        line = THREE.says("unsafe-bootstrap", 400)
        claim("it names the lost, the one that is left and the cluster", all(name in line for name in (*LOST, LEFT, identity)), line)
    with step("what may be lost is said first, and another cluster is refused"):
        asked = plugin.run("unsafe-bootstrap", THREE.name, "a-0")
        said = asked.stdout + asked.stderr
        say(f"    {said.strip()}")
        claim("it says what may be lost, and the id to type", "lost" in said and identity in said, said)
        wrong = plugin.run("unsafe-bootstrap", THREE.name, "a-0", "--cluster-id", "another")
        claim("another cluster's id is refused", wrong.returncode != 0 and "another" in wrong.stderr, wrong.stdout + wrong.stderr)
        claim("no word was written", word() is None, word())
    with step("kubectl navigator unsafe-bootstrap: it serves alone, with all that it had"):
        begun = time.monotonic()
        plugin.says(0, "unsafe-bootstrap", THREE.name, "a-0", "--cluster-id", identity)
        THREE.wait("it serves alone", serves_alone, 600, every=2)
        say(f"    it serves after {time.monotonic() - begun:.0f} s")
        THREE.has_documents(range(DOCUMENTS))
        THREE.wait("the word is taken off", lambda: word() is None or word())
        other = THREE.wait("another identity", lambda: (now := THREE.get("pilot", LEFT)["status"]["identity"]["clusterID"]) != identity and [now] or now)[0]
        say(f"    cluster {identity} is {other} now")
    with step("the lost are given up, and join anew"):
        begun = time.monotonic()
        for node, uid in data.items():
            THREE.says(f"give-up={uid}")
            plugin.give_up(THREE, node.partition(f"-{THREE.name}-")[2], uid)
        THREE.ready(nodes=3, deadline=900)
        green(3)
        say(f"    Ready after {time.monotonic() - begun:.0f} s")
        for node in LOST:
            claim(f"{node} is in the cluster that was begun anew", THREE.get("pilot", node)["status"]["identity"]["clusterID"] == other, node)
        THREE.has_documents(range(DOCUMENTS))
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
