#!/usr/bin/env python3
"""renewals.py NAVIGATOR [VERSION ...]: certificates of ten minutes are renewed three times, and then both CAs are replaced, in a cluster of each database
and release that is secured, while a client writes and reads; nothing is restarted. By `navigator local`, the clusters side by side; 25 minutes.
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
from datetime import UTC, datetime
from pathlib import Path

import run
from run import SAMPLES, Local, check, cql, home, say, until

ALL = ("cassandra-4.1.10", "cassandra-5.0.6", "elasticsearch-7.17.29", "elasticsearch-8.19.4")
RENEWALS = 3


def values(local, kind, name):
    """What a Secret or a ConfigMap holds."""
    data = json.loads(local.kubectl("get", kind, name, "-o", "json"))["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()} if kind == "secret" else data


class Cluster:
    def __init__(self, local, release):
        self.local, (self.database, self.version) = local, release.split("-")
        self.name = "v" + self.version.replace(".", "-")
        self.kind, self.prefix = ("CassandraCluster", "cass") if self.database == "cassandra" else ("ElasticsearchCluster", "es")
        self.pod = f"{self.prefix}-{self.name}-a-0"
        self.address = None

    def manifest(self):
        return f"""apiVersion: navigator.jetstack.io/v1beta1
kind: {self.kind}
metadata: {{name: {self.name}}}
spec:
  version: "{self.version}"
  jvm: {{heap: {384 if self.database == "cassandra" else 256}Mi}}
  security: {{mode: Secure, certificates: {{duration: 10m, caOverlap: 0s}}}}
  nodePools:
  - name: a
    replicas: 1
    {"roles: [master, data, ingest]" if self.database == "elasticsearch" else "rack: a"}
    persistence: {{size: 1Gi}}
"""

    def pilot(self):
        return json.loads(self.local.kubectl("get", "pilot", self.pod, "-o", "json"))["status"]

    def shown(self):
        """What both ports show: certificate and CA of each."""
        security = self.pilot()["security"]
        return {port: (security[port]["sha256"], security[port].get("authority")) for port in ("internode", "client")}

    def process(self):
        found = self.pilot()["process"]
        return found["pid"], found["startTime"]

    def condition(self):
        status = json.loads(self.local.kubectl("get", f"{self.kind.lower()}", self.name, "-o", "json"))["status"]
        return next(one for one in status["conditions"] if one["type"] == "CertificatesValid")

    def write_and_read(self, number, credentials):
        """Over a connection of its own, to a node whose CA and address are checked."""
        if self.database == "cassandra":
            with cql.Session(self.address, credentials=credentials) as session:
                session.run(f"INSERT INTO shop.orders (id, body) VALUES ({number}, 'kept')")
                check(session.run(f"SELECT body FROM shop.orders WHERE id = {number}") == [["kept"]], "row", number)
            return
        context = ssl.create_default_context(cadata=credentials["ca.crt"])
        login = base64.b64encode(f"{credentials['username']}:{credentials['password']}".encode()).decode()

        def ask(method, body=None):
            request = urllib.request.Request(f"https://{self.address}:9200/orders/_doc/{number}", body and json.dumps(body).encode(), method=method,
                                             headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"})
            with urllib.request.urlopen(request, context=context, timeout=20) as answer:
                return json.loads(answer.read())
        ask("PUT", {"number": number})
        check(ask("GET")["_source"]["number"] == number, "document", number)


class Client(threading.Thread):
    """Writes a row and reads it back twice a second; one that fails is tried once more, with the CAs as they are by then."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster = cluster
        self.done = self.retried = 0
        self.failed, self.ends, self.credentials = [], threading.Event(), None

    def learn(self):
        """As a mounted Secret would tell it."""
        cluster = self.cluster
        found = values(cluster.local, "secret", f"{cluster.prefix}-{cluster.name}-admin")
        self.credentials = {"username": found["username"], "password": found["password"], "ca.crt": found["ca.crt"]}

    def run(self):
        number = 0
        while not self.ends.wait(0.5):
            number += 1
            for attempt in (1, 2):
                try:
                    if number % 20 == 1 or attempt == 2:
                        self.learn()
                    self.cluster.write_and_read(number, self.credentials)
                    self.done += 1
                    break
                except (OSError, cql.Refused, run.Failed, ValueError, KeyError) as error:
                    self.retried += attempt == 1
                    if attempt == 2:
                        self.failed.append(f"{number}: {type(error).__name__}: {error}"[:300])


def lives(clusters):
    clients = {one.name: Client(one) for one in clusters}
    for one in clusters:
        until(f"{one.name} shows its certificates", one.shown)
        one.address = one.local.address(one.pod)
        one.local.kubectl("wait", "--for=condition=Secured", f"{one.kind.lower()}/{one.name}", "--timeout=600s")
        client = clients[one.name]
        client.learn()
        if one.database == "cassandra":
            with cql.Session(one.address, credentials=client.credentials) as session:
                session.run("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 1}")
                session.run("CREATE TABLE shop.orders (id int PRIMARY KEY, body text)")
        client.start()
    begun = {one.name: one.process() for one in clusters}
    seen = {one.name: {"internode": [], "client": []} for one in clusters}

    def look():
        for one in clusters:
            for port, (leaf, _) in one.shown().items():
                if leaf not in seen[one.name][port]:
                    seen[one.name][port].append(leaf)
                    say(f"    {one.name}: {port} certificate {len(seen[one.name][port])}; {clients[one.name].done} requests")
        return all(len(leaves) > RENEWALS for ports in seen.values() for leaves in ports.values())
    say(f"--- {RENEWALS} renewals of each certificate")
    until(f"each port has shown {RENEWALS + 1} certificates", look, 45 * 60)
    say("--- another CA for each use")
    former = {one.name: {ca for _, ca in one.shown().values()} for one in clusters}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for one in clusters:
        one.local.kubectl("patch", one.kind.lower(), one.name, "--type", "merge", "-p",
                          json.dumps({"spec": {"security": {"certificates": {"caRotatedAt": now}}}}))

    def replaced():
        return all(not former[one.name] & {ca for _, ca in one.shown().values()} and one.condition()["reason"] == "CertificatesCurrent" for one in clusters)
    until("both ports of each show certificates of other CAs, and the former ones are forgotten", replaced)
    later = {name: client.done + 5 for name, client in clients.items()}
    until("each client was answered after that", lambda: all(client.done >= later[name] for name, client in clients.items()))
    for one in clusters:
        client = clients[one.name]
        client.ends.set()
        client.join(timeout=60)
        say(f"    {one.database} {one.version}: {client.done} requests, {client.retried} tried again, {len(client.failed)} failed after that")
        check(client.done > 100 and not client.failed, one.name, client.done, client.failed[:5])
        check(one.process() == begun[one.name], one.name, "was restarted", begun[one.name], one.process())


def main():
    program, releases = sys.argv[1], sys.argv[2:] or ALL
    place = Path(tempfile.mkdtemp(prefix="navigator-renewals-"))
    place.chmod(0o711)
    local = Local(program, place / "state")
    clusters = [Cluster(local, release) for release in releases]
    path = place / "clusters.yaml"
    path.write_text("---\n".join(one.manifest() for one in clusters))
    homes = [word for one in clusters for word in ("--home", f"{one.database}={home(one.database, one.version)}")]
    try:
        say("--- up")
        local.run("up", *homes, "-f", path, "--wait", timeout=1800)
        lives(clusters)
        say("=== ok")
    finally:
        if os.environ.get("KEEP") != "1":
            local.kill_everything()
            with contextlib.suppress(OSError):
                shutil.rmtree(place)


if __name__ == "__main__":
    main()
