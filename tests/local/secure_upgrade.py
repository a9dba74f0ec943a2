#!/usr/bin/env python3
"""secure_upgrade.py NAVIGATOR: three nodes of each database, secured, with a user whose role is in the spec, go to the next major version one by one,
while that user writes and reads; certificates and users are the same afterwards. By `navigator local`, one cluster after the other; 15 minutes.
"""
import base64
import contextlib
import json
import os
import shutil
import ssl
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

import run
from renewals import values
from run import Local, check, cql, home, say, until

NODES = range(3)


class Cluster:
    """What the two have in common."""

    def __init__(self, local, place):
        self.local, self.place = local, place
        self.pods = [f"{self.prefix}-safe-a-{number}" for number in NODES]
        self.credentials, self.addresses = None, []

    def up(self):
        path = self.place / "safe.yaml"
        path.write_text(f"""apiVersion: navigator.jetstack.io/v1beta1
kind: {self.kind}
metadata: {{name: safe}}
spec:
  version: "{self.before}"
  jvm: {{heap: {self.heap}}}
  security:
    users: [{{name: app, roles: [orders]}}]
    roles: [{{name: orders, {self.rights}}}]
  nodePools:
  - name: a
    replicas: {len(NODES)}
    {self.pool}
    persistence: {{size: 1Gi}}
""")
        homes = [word for version in (self.before, self.after) for word in ("--home", f"{self.database}={home(self.database, version)}")]
        self.local.run("up", *homes, "-f", path, "--wait", timeout=1800)
        self.local.kubectl("wait", "--for=condition=Secured", f"{self.kind.lower()}/safe", "--timeout=600s", timeout=700)
        self.learn()

    def learn(self):
        found = values(self.local, "secret", f"{self.prefix}-safe-user-app")
        self.credentials = {"username": found["username"], "password": found["password"], "ca.crt": found["ca.crt"]}
        self.addresses = [self.local.address(pod) for pod in self.pods]

    def status(self):
        return json.loads(self.local.kubectl("get", f"{self.kind.lower()}", "safe", "-o", "json"))["status"]

    def shown(self):
        pilots = [json.loads(self.local.kubectl("get", "pilot", pod, "-o", "json"))["status"]["security"] for pod in self.pods]
        return [(pilot["internode"]["sha256"], pilot["client"]["sha256"], pilot["users"]) for pilot in pilots]

    def upgrade(self):
        self.local.kubectl("patch", f"{self.kind.lower()}", "safe", "--type", "merge", "-p", json.dumps({"spec": {"version": self.after}}))

        def done():
            status = self.status()
            true = {one["type"] for one in status["conditions"] if one["status"] == "True"}
            versions = [json.loads(self.local.kubectl("get", "pilot", pod, "-o", "json"))["status"].get(self.database, {}).get("version") for pod in self.pods]
            return {"Ready", "Secured", "CertificatesValid", "UsersReady"} <= true and set(versions) == {self.after} or check(False, versions, true)
        until("all nodes run the next version, and are secured", done, 1800)


class Cassandra(Cluster):
    database, kind, prefix, before, after, heap, pool = "cassandra", "CassandraCluster", "cass", "4.1.10", "5.0.6", "384Mi", "rack: a"
    rights = 'grants: [{permissions: [ALL], keyspace: shop}]'

    def prepare(self):
        admin = values(self.local, "secret", "cass-safe-admin")
        with cql.Session(self.addresses[0], credentials=admin) as session:
            session.run("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 3}", "QUORUM")
            session.run("CREATE TABLE shop.orders (id int PRIMARY KEY, body text)", "QUORUM")
            session.agree()

    def rights_of_role(self):
        with cql.Session(self.addresses[0], credentials=values(self.local, "secret", "cass-safe-admin")) as session:
            return sorted({row[-1] for row in session.run("LIST ALL PERMISSIONS OF orders")})

    def write_and_read(self, number, address):
        with cql.Session(address, credentials=self.credentials) as session:
            session.run(f"INSERT INTO shop.orders (id, body) VALUES ({number}, 'kept')", "QUORUM")
            check(session.run(f"SELECT body FROM shop.orders WHERE id = {number}", "QUORUM") == [["kept"]], "row", number)

    def count(self):
        with cql.Session(self.addresses[0], credentials=self.credentials) as session:
            return len(session.run("SELECT id FROM shop.orders", "QUORUM"))


class Elasticsearch(Cluster):
    database, kind, prefix, before, after, heap = "elasticsearch", "ElasticsearchCluster", "es", "7.17.29", "8.19.4", "256Mi"
    pool = "roles: [master, data, ingest]"
    rights = 'indices: [{names: [orders], privileges: [create_index, read, write, maintenance]}]'

    def ask(self, address, method, path, body=None):
        context = ssl.create_default_context(cadata=self.credentials["ca.crt"])
        login = base64.b64encode(f"{self.credentials['username']}:{self.credentials['password']}".encode()).decode()
        request = urllib.request.Request(f"https://{address}:9200{path}", body and json.dumps(body).encode(), method=method,
                                         headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"})
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return json.loads(answer.read())

    def prepare(self):
        self.ask(self.addresses[0], "PUT", "/orders", {"settings": {"number_of_replicas": 1}})

    def rights_of_role(self):
        return []

    def write_and_read(self, number, address):
        self.ask(address, "PUT", f"/orders/_doc/{number}", {"number": number})
        check(self.ask(address, "GET", f"/orders/_doc/{number}")["_source"]["number"] == number, "document", number)

    def count(self):
        return self.ask(self.addresses[0], "GET", "/orders/_search?size=0&track_total_hits=true")["hits"]["total"]["value"]


class Client(threading.Thread):
    """Writes a row and reads it back, over a new connection each; where a node does not answer, the next one is asked, as drivers do."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.done, self.retried, self.failed, self.ends = cluster, 0, 0, [], threading.Event()

    def run(self):
        number = 0
        while not self.ends.wait(0.3):
            number += 1
            why = []
            for attempt in NODES:
                addresses = self.cluster.addresses
                try:
                    self.cluster.write_and_read(number, addresses[(number + attempt) % len(addresses)])
                    self.done += 1
                    break
                except (OSError, cql.Refused, run.Failed, ValueError, KeyError) as error:
                    why.append(f"{type(error).__name__}: {error}"[:200])
                    self.retried += attempt == 0
            else:
                self.failed.append(f"{number}: {why}")


def lives(cluster):
    say(f"--- {cluster.database} {cluster.before}")
    cluster.up()
    cluster.prepare()
    cluster.write_and_read(0, cluster.addresses[0])
    shown, rights = cluster.shown(), cluster.rights_of_role()
    client = Client(cluster)
    client.start()
    cluster.upgrade()
    until("what was written is served", lambda: client.done > 20)
    client.ends.set()
    client.join(timeout=120)
    say(f"    to {cluster.after}: {client.done} requests, {client.retried} sent to another node, {len(client.failed)} failed by all")
    check(not client.failed, client.failed[:5])
    until("every row is there", lambda: cluster.count() == client.done + 1)
    now = cluster.shown()
    # The pods of `navigator local` keep their addresses, so nothing is to be signed again.
    check(now == shown, "certificates or users are others", shown, now)
    if rights:
        say(f"    rights of the role: {' '.join(rights)}; now {' '.join(until('rights that the next version has', lambda: (r := cluster.rights_of_role()) != rights and r))}")


def main():
    for one in (Cassandra, Elasticsearch):
        place = Path(tempfile.mkdtemp(prefix="navigator-secure-upgrade-"))
        place.chmod(0o711)
        local = Local(sys.argv[1], place / "state")
        try:
            lives(one(local, place))
        finally:
            if os.environ.get("KEEP") != "1":
                local.kill_everything()
                with contextlib.suppress(OSError):
                    shutil.rmtree(place)
    say("=== ok")


if __name__ == "__main__":
    main()
