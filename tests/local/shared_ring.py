#!/usr/bin/env python3
"""shared_ring.py NAVIGATOR: a ring of two clusters, each with a CA of its own, is encrypted between its nodes rung by rung, as people say it on both
sides, and opened again; meanwhile a row that is written on one side is read on the other. Encrypted again, both ask for logins, a third cluster
joins which does from its first moment, and it leaves with its logins. By `navigator local`; 25 minutes.
"""
import contextlib
import json
import os
import shutil
import ssl
import sys
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

from renewals import values
from run import Local, check, cql, home, say, until

VERSION = "5.0.6"
BOTH = ("eu", "us")
RUNGS = ("Off", "Allow", "Prefer", "Required")


def manifest(name, seeds, security):
    return f"""apiVersion: navigator.jetstack.io/v1beta1
kind: CassandraCluster
metadata: {{name: {name}}}
spec:
  version: "{VERSION}"
  clusterName: orders
  additionalSeeds: {json.dumps(seeds)}
  jvm: {{heap: 384Mi}}
  security: {json.dumps(security)}
  nodePools:
  - {{name: a, replicas: 1, datacenter: {name}, rack: r1, persistence: {{size: 1Gi}}}}
"""


class Ring:
    def __init__(self, local, place):
        self.local, self.place, self.row, self.logins = local, place, 0, {}

    def get(self, kind, name):
        return json.loads(self.local.kubectl("get", kind, name, "-o", "json"))

    def patch(self, name, security, code=0):
        return self.local.kubectl("patch", "cassandracluster", name, "--type", "merge", "-p", json.dumps({"spec": {"security": security}}), code=code)

    def create(self, name, seeds, security):
        path = self.place / f"{name}.yaml"
        path.write_text(manifest(name, seeds, security))
        self.local.kubectl("apply", "-f", path)

    def apply(self, name, seeds):
        self.create(name, seeds, {"mode": "Open"})
        self.local.kubectl("wait", "--for=condition=Ready", f"cassandracluster/{name}", "--timeout=900s", timeout=1000)

    def address(self, name):
        return self.local.address(f"cass-{name}-a-0")

    def run(self, name, text):
        with cql.Session(self.address(name), credentials=self.logins.get(name)) as session:
            return session.run(text)

    def reads_each_other(self):
        """A row that each side writes is read on the other, by that node's own copy of it."""
        for here, there in (BOTH, BOTH[::-1]):
            self.row += 1
            until(f"{here} takes a row", lambda: self.run(here, f"INSERT INTO shop.orders (id, body) VALUES ({self.row}, '{here}')") is not None)
            until(f"{there} has it", lambda: self.run(there, f"SELECT body FROM shop.orders WHERE id = {self.row}") == [[here]])

    def runs(self, name):
        security = self.get("pilot", f"cass-{name}-a-0")["status"].get("security", {})
        return security.get("rungs", {}).get("internode", "Off"), security.get("internode", {})

    def goes_to(self, rung):
        for name in BOTH:
            self.patch(name, {"mode": None, "internode": {"tls": rung}})
            until(f"{name} runs on {rung}", lambda: self.runs(name)[0] == rung or check(False, self.runs(name)))
            self.local.kubectl("wait", "--for=condition=Ready", f"cassandracluster/{name}", "--timeout=600s", timeout=700)
            self.reads_each_other()
            say(f"    {name} is on {rung}, and each has what the other writes")


    def asks(self, name):
        """Waits until the cluster asks for logins; its own administrator is whom we are there from now on."""
        self.local.kubectl("wait", "--for=condition=Secured", f"cassandracluster/{name}", "--timeout=900s", timeout=1000)
        self.logins[name] = values(self.local, "secret", f"cass-{name}-admin")
        for one in (*self.logins, name):
            knows(self, one, name)

    def copies(self, name):
        rows = self.run(name, "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'system_auth'")
        text = bytes.fromhex(rows[0][0])
        return {where: f"{where}\0\0\0\x011".encode() in text for where in self.logins}


def knows(ring, who, where):
    """One cluster's administrator is let in at a node of another, whose CA has signed that."""
    trust = ring.logins[where]["ca.crt"]

    def look():
        with cql.Session(ring.address(where), credentials=ring.logins[who] | {"ca.crt": trust}) as session:
            return session.run("SELECT role FROM system_auth.roles") != []
    until(f"{where} knows the administrator of {who}", look)


class Outsider(threading.Thread):
    """Tries what everybody knows, again and again, in plain text and with TLS."""

    def __init__(self, ring, name):
        super().__init__(daemon=True)
        self.ring, self.name, self.tries, self.inside, self.ends = ring, name, 0, [], threading.Event()

    def run(self):
        blind = ssl.create_default_context()
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        while not self.ends.wait(0.1):
            for context in (None, blind):
                for login in (None, {"username": "cassandra", "password": "cassandra"}):
                    with contextlib.suppress(OSError, ConnectionError, cql.Refused, KeyError, IndexError):
                        with cql.Session(self.ring.address(self.name), timeout=5, credentials=login, context=context) as session:
                            self.inside.append(session.run("SELECT cluster_name FROM system.local"))
            self.tries += 1


def asks_for_logins(ring):
    for name in BOTH:
        ring.local.kubectl("patch", "cassandracluster", name, "--type", "merge", "-p", json.dumps({"spec": {
            "security": {"client": {"tls": "Required"}, "authentication": "Password"}, "updateStrategy": {"skipPredicates": ["ClientsSendLogins"]}}}))
        ring.asks(name)
        ring.reads_each_other()
        say(f"    {name} asks for logins, and each has what the other writes")
    names = [ring.logins[name]["username"] for name in BOTH]
    check(names == ["admin", "admin-us"], names)
    say("--- a third cluster joins, and asks from its first moment")
    bundles = {name: {"kind": "ConfigMap", "name": f"cass-{name}-ca", "key": "internode-ca.crt"} for name in (*BOTH, "ap")}
    outsider = Outsider(ring, "ap")
    outsider.start()
    ring.create("ap", [ring.address("eu")], {"mode": "Secure", "internode": {"trust": [bundles[name] for name in BOTH]}})
    until("the third one has a CA", lambda: "internode-ca.crt" in ring.get("configmap", "cass-ap-ca")["data"])
    for name, other in (BOTH, BOTH[::-1]):
        ring.patch(name, {"internode": {"trust": [bundles[other], bundles["ap"]]}})
    ring.asks("ap")
    outsider.ends.set()
    outsider.join()
    check(outsider.tries > 20 and not outsider.inside, outsider.tries, "tries,", outsider.inside)
    for name in BOTH:
        knows(ring, name, "ap")
    until("each datacenter has a copy of the logins", lambda: all((seen := ring.copies("ap")).values()) or check(False, seen))
    check(ring.run("ap", "SELECT body FROM shop.orders WHERE id = 1") == [["eu"]], "a row of before")
    for name in ring.logins:
        ready = {one["type"]: one["status"] for one in ring.get("cassandracluster", name)["status"]["conditions"]}
        check(ready["UsersReady"] == ready["Ready"] == "True", name, ready)
    say(f"    nobody got in with what everybody knows in {outsider.tries} tries")
    leaves(ring, "ap")


def leaves(ring, name):
    """The last cluster takes its logins along; the datacenter that has no node any more keeps no copies of those of the others."""
    say("--- the third cluster leaves")
    former, roles = ring.logins[name], "SELECT role, can_login FROM system_auth.roles"
    before = {role for role, can_login in ring.run("eu", roles) if can_login}
    mark = f"navigator_{ring.get('cassandracluster', name)['metadata']['uid'][:8]}"
    check({former["username"], mark} <= before, before)
    ring.local.kubectl("patch", "cassandracluster", name, "--type", "json", "-p", '[{"op": "replace", "path": "/spec/nodePools/0/replicas", "value": 0}]')
    until(f"{name} has left", lambda: all(row[0] != name for row in ring.run("eu", "SELECT data_center FROM system.peers")))
    left = {role for role, can_login in ring.run("eu", roles) if can_login}
    check(before - left == {former["username"], mark}, before, left)
    try:
        with cql.Session(ring.address("eu"), credentials=former | {"ca.crt": ring.logins["eu"]["ca.crt"]}):
            check(False, "the administrator of the cluster that left is let in")
    except cql.Refused as refusal:
        say(f"    {refusal}")
    until("eu and us drop its copies", lambda: not ring.copies("eu")[name] or check(False, ring.copies("eu")))
    # Cassandra writes roles to a quorum of each datacenter.
    for one in BOTH:
        ring.run(one, f"CREATE ROLE later_{one}")
    say("    its logins are closed, and roles can be made as before")


def lives(ring):
    ring.apply("eu", [])
    ring.apply("us", [ring.address("eu")])
    ring.run("eu", "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'eu': 1, 'us': 1}")
    ring.run("eu", "CREATE TABLE shop.orders (id int PRIMARY KEY, body text)")
    ring.reads_each_other()
    say("--- a rung is not skipped")
    refused = ring.local.kubectl("patch", "cassandracluster", "us", "--type", "merge", "-p",
                                 '{"spec": {"security": {"mode": null, "internode": {"tls": "Required"}}}}', "--dry-run=server", "-o", "name", code=1)
    check(refused == "", refused)
    say("--- up")
    ring.goes_to("Allow")
    for name, other in (BOTH, BOTH[::-1]):
        ring.patch(name, {"internode": {"trust": [{"kind": "ConfigMap", "name": f"cass-{other}-ca", "key": "internode-ca.crt"}]}})
    for name in BOTH:
        until(f"{name} accepts certificates of both", lambda: len(ring.runs(name)[1]["trust"]) == 2)
    ring.goes_to("Prefer")
    ring.goes_to("Required")
    say("--- another CA on one side")
    former = ring.runs("eu")[1]["authority"]
    # The other side reads the ConfigMap once a minute, and trusts what has been there for a minute.
    ring.patch("eu", {"certificates": {"caRotatedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "caOverlap": "5m"}})
    until("us learns of it", lambda: len(ring.runs("us")[1]["trust"]) == 3)
    until("eu shows a certificate of it", lambda: ring.runs("eu")[1]["authority"] != former)
    ring.reads_each_other()
    until("us forgets the former one", lambda: former not in ring.runs("us")[1]["trust"])
    ring.reads_each_other()
    say("--- down")
    for rung in ("Prefer", "Allow", "Off"):
        ring.goes_to(rung)
    say("--- up again, with logins")
    for rung in RUNGS[1:]:
        ring.goes_to(rung)
    asks_for_logins(ring)


def main():
    place = Path(tempfile.mkdtemp(prefix="navigator-shared-ring-"))
    place.chmod(0o711)
    local = Local(sys.argv[1], place / "state")
    try:
        local.run("up", "--home", f"cassandra={home('cassandra', VERSION)}", timeout=600)
        lives(Ring(local, place))
        say("=== ok")
    finally:
        if os.environ.get("KEEP") != "1":
            local.kill_everything()
            with contextlib.suppress(OSError):
                shutil.rmtree(place)


if __name__ == "__main__":
    main()
