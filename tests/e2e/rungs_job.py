"""Encryption and logins are turned on in running clusters, and off again: in Cassandra round by round while a client writes and reads at
QUORUM, in Elasticsearch by one announced stop of all nodes. Between the two, clients have to show certificates.

Not part of CI: `make e2e-rungs`; RUNGS=cassandra or RUNGS=elasticsearch for one of the two.
"""
import base64
import json
import os
import subprocess
import time

from bed import RUN, claim, get, kubectl, main, say, step
from cassandra.cluster import NoHostAvailable
from cluster import Cassandra, Elasticsearch
from cql import QuorumClient, Session
from es import Node
from navigator import install
from plugin import Plugin

NS = "rungs"
ROWS, DOCUMENTS = 200, 2_000
RUNGS = os.environ.get("RUNGS", "cassandra elasticsearch").split()
# Its image is made by `make e2e-rungs`; the other jobs run the sample's.
NEWER = "8.19.4"
SECURE, OPEN = {"mode": "Secure"}, {"mode": "Open"}
# What the client's user may do, which a ring that asks nobody has to store.
APP = {"users": [{"name": "app", "roles": ["rows"]}],
       "roles": [{"name": "rows", "grants": [{"permissions": ["SELECT", "MODIFY"], "keyspace": "shop"}]}]}


def skips(*names):
    return {"skipPredicates": list(names)}


def wait_blocked(cluster, predicate, words="", deadline=900):
    """Waits until a change of security is held by this predicate, in these words; returns what the status says of it."""
    def check():
        operation = cluster.status().get("operation", {})
        held = [block for block in operation.get("blockedBy", []) if block["predicate"] == predicate and words in block["message"]]
        return held if operation.get("type") == "Secure" and held else json.dumps(operation)
    block = cluster.wait(f"{predicate} to hold", check, deadline)[0]
    say(f"    {predicate}: {block['message']}; {block['hint']}")
    return block


def rungs(cluster):
    """On which rungs each node runs."""
    found = {}
    for name, pilot in cluster.pilots().items():
        runs = pilot["status"].get("security", {}).get("rungs", {})
        found[name] = " ".join(runs.get(key, "Off") for key in ("internode", "client", "authentication"))
    return found


def all_on(cluster, wanted, deadline=1200):
    cluster.wait(f"all nodes on {wanted}", lambda: (on := rungs(cluster)) and set(on.values()) == {wanted} or json.dumps(on), deadline)


def trust(cluster):
    return cluster.get("configmap", f"{cluster.prefix}-{cluster.name}-ca")["data"]["ca.crt"]


def login(cluster, user="admin"):
    data = cluster.get("secret", f"{cluster.prefix}-{cluster.name}-{user}")["data"]
    return tuple(base64.b64decode(data[key]).decode() for key in ("username", "password"))


def certificate_of_clients():
    """Makes a CA of clients, which the ConfigMap `clients` holds, and a certificate of it; returns the file with that and its key."""
    made = RUN / "clients"
    made.mkdir(exist_ok=True)

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=made, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=clients", "-keyout", "ca.key", "-out", "ca.crt",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", *key, "-subj", "/CN=app", "-keyout", "app.key", "-out", "app.csr")
    openssl("x509", "-req", "-in", "app.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out", "app.crt")
    own = made / "app.pem"
    own.write_text((made / "app.crt").read_text() + (made / "app.key").read_text())
    kubectl("create", "configmap", "-n", NS, "clients", f"--from-file=ca.crt={made / 'ca.crt'}")
    return own


ASKS = {"client": {"clientAuth": "Required", "clientCA": {"kind": "ConfigMap", "name": "clients", "key": "ca.crt"}}}


def asks_each_client(cluster, serves):
    """Waits until no node lets anybody in without a certificate, and each with it. `serves(address, shown)` is True where a node serves the
    administrator."""
    asked = cluster.addresses()

    def open_nodes():
        return [address for address in asked() if serves(address, False) is True]

    cluster.wait("no node to serve without a certificate", lambda: not open_nodes() or f"open: {open_nodes()}", 900)
    cluster.ready(nodes=3)
    addresses = asked()
    claim("three nodes are asked", len(addresses) == 3, addresses)
    for address in addresses:
        first = serves(address, True)
        if first is not True:
            say(f"    the node at {address} does not serve yet who shows one: {first}")
        cluster.wait(f"the node at {address} serves who shows one", lambda address=address: serves(address, True))
        claim("and nobody else", serves(address, False) is not True)


class Known:
    """A login that is read when the first session is made that a node may ask for it: until then any will do."""

    def __init__(self, cluster):
        self.cluster, self.found = cluster, ("nobody", "yet")

    def __iter__(self):
        if get("secret", "-n", NS, f"{self.cluster.prefix}-{self.cluster.name}-user-app"):
            self.found = login(self.cluster, "user-app")
        return iter(self.found)


def ring_on_and_off(own):
    ring = Cassandra(NS, "ring")
    with step("an open Cassandra of three racks"):
        ring.apply(ring.pools("abc"))
        ring.ready(nodes=3, deadline=1500)
        ring.write(ROWS, copies=3)
    begun = time.monotonic()
    with QuorumClient(ring.addresses(), ROWS, Known(ring)) as client:
        with step("it is to be secure: one round, in which nodes take both, then it waits for clients"):
            ring.patch(security={**SECURE, **APP})
            wait_blocked(ring, "ClientsSendLogins")
            all_on(ring, "Allow Optional Off", 60)
            claim("the condition says so", ring.told("Secured")[1] == "SecurityInProgress", ring.told("Secured"))
        with step("clients send logins: the second round, then it waits for plain connections to end"):
            client.speak(None)
            ring.patch(updateStrategy=skips("ClientsSendLogins"))
            wait_blocked(ring, "ClientsEncrypted", "connections without TLS, from 10.")
            all_on(ring, "Prefer Optional Password", 60)
        with step("clients speak TLS: the third round"):
            client.speak(trust(ring))
            ring.tells("Secured", "True", "Secured", deadline=1200)
            ring.ready(nodes=3)
            all_on(ring, "Required Required Password", 60)
            refused(ring)
        with step("clients must show a certificate, which ours does"):
            client.speak(trust(ring), own)

            def serves(address, shown):
                try:
                    Session(address, trust(ring), login(ring), own if shown else None).cluster.shutdown()
                    return True
                except (NoHostAvailable, OSError) as error:
                    return str(error)[:300]

            ring.patch(security=ASKS)
            # (the bed's image has no cqlsh for `kubectl navigator shell`)
            asks_each_client(ring, serves)
        say(f"    {client.figures()}; secured after {time.monotonic() - begun:.0f} s")
        with step("it is to be open again: two rounds, then it waits for TLS connections to end"):
            ring.patch(security={**OPEN, "client": None}, updateStrategy=None)
            wait_blocked(ring, "ClientsPlain")
            all_on(ring, "Allow Optional Off", 60)
        with step("clients speak plain text: the last round"):
            client.speak(None)
            all_on(ring, "Off Off Off")
            ring.ready(nodes=3)
            ring.tells("Secured", "False", "SecurityDisabled")
    say(f"    {client.figures()}; {time.monotonic() - begun:.0f} s in all")
    claim("no request failed at QUORUM after one retry", client.done > 100 and not client.failed, client.failed[:5])
    missing = client.missing()
    claim(f"all {len(client.acknowledged)} acknowledged rows are read at QUORUM", not missing, missing[:10])
    ring.delete()
    ring.pods_are_gone(400)


def refused(ring):
    for what, arguments in {"plain text": (None, login(ring)), "no login": (trust(ring), None),
                            "cassandra/cassandra": (trust(ring), ("cassandra", "cassandra"))}.items():
        try:
            Session(ring.address(), *arguments).cluster.shutdown()
            claim(f"{what} is refused", False)
        except (NoHostAvailable, OSError):
            claim(f"{what} is refused", True)


def documents_on_and_off(own):
    nodes = Elasticsearch(NS, "nodes")

    def answers(secure):
        """True when each node answers, and how often one did otherwise."""
        try:
            for at in range(3):
                one = Node(nodes.address(at), *((trust(nodes), login(nodes)) if secure else (None, None)))
                status, health = one.ask("GET", "/_cluster/health?timeout=1s", timeout=5)
                if status != 200 or health["number_of_nodes"] != 3 or health["status"] != "green":
                    return json.dumps(health)
            return True
        except (OSError, KeyError, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    def outage(secure):
        """Seconds from the last answer in the former way to the first of a whole cluster in the new one."""
        nodes.wait("the former way ends", lambda: answers(not secure) is not True or "it answers", 300, every=0.5)
        gone = time.monotonic()
        nodes.wait("the cluster answers in the new way", lambda: answers(secure), 900, every=0.5)
        return time.monotonic() - gone

    with step("an open Elasticsearch of three nodes"):
        nodes.apply(nodes.manifest(version=NEWER, security=OPEN))
        nodes.ready(nodes=3)
        nodes.ignore_disk()
        claim("the index is made", nodes.ask("PUT", "/orders", {"settings": {"number_of_shards": 3, "number_of_replicas": 1}})[0] == 200)
        claim("documents are acknowledged", len(nodes.client().write(0, DOCUMENTS)) == DOCUMENTS)
    with step("it is to be secure: it waits, and says what will happen"):
        before = nodes.processes()
        nodes.patch(security=SECURE)
        wait_blocked(nodes, "KeepsServing", "all nodes stop and start together: nothing is served")
        claim("it serves as before", answers(False) is True and nodes.processes() == before)
    with step("somebody lets it begin: all nodes stop and start"):
        nodes.patch(updateStrategy=skips("KeepsServing"))
        took = outage(True)
        nodes.ready(nodes=3)
        nodes.tells("Secured", "True", "Secured")
        say(f"    {took:.0f} s from the last plain answer of a whole cluster to the first over TLS")
        found = Node(nodes.address(), trust(nodes), login(nodes)).read(range(DOCUMENTS))
        claim("all documents are there", len(found) == DOCUMENTS, len(found))
    with step("clients must show a certificate"):
        def serves(address, shown):
            try:
                status, answer = Node(address, trust(nodes), login(nodes), own if shown else None).ask("GET", "/_cluster/health", timeout=10)
                return status == 200 or f"answered {status}: {json.dumps(answer)[:500]}"
            except OSError as error:
                return f"{type(error).__name__}: {error}"

        nodes.patch(security=ASKS)
        asks_each_client(nodes, serves)
        said = Plugin(NS).says(0, "shell", nodes.name, "--", "_cat/nodes?h=name")
        claim("shell shows that of its node", len(said.split()) == 3, said)
    with step("and off again"):
        nodes.patch(security={**OPEN, "client": None})
        took = outage(False)
        nodes.ready(nodes=3)
        say(f"    {took:.0f} s")
        found = nodes.client().read(range(DOCUMENTS))
        claim("all documents are there", len(found) == DOCUMENTS, len(found))
    nodes.delete()
    nodes.pods_are_gone(400)


def job():
    with step("install"):
        install()
        kubectl("create", "namespace", NS)
        own = certificate_of_clients()
    if "cassandra" in RUNGS:
        ring_on_and_off(own)
    if "elasticsearch" in RUNGS:
        documents_on_and_off(own)


if __name__ == "__main__":
    main(job)
