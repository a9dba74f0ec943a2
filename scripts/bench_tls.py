#!/usr/bin/env python3
"""bench_tls.py NAVIGATOR FOLDER [DATABASE ...]: what TLS and logins cost: a secure cluster beside an open one, by `navigator local`.

For each database: seconds from `kubectl apply` to Ready of one node, and of a second one; requests a second, five rounds each in turn;
milliseconds for a connection with its login; resident memory of the pilots. Prints a table, medians with the extremes. FOLDER keeps
the distributions. Needs kubectl on the PATH.
"""
import base64
import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cql

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("open", "safe")
ROUNDS, SECONDS, CONNECTIONS, CONNECTS = 5, 10, 8, 30
PATIENCE = 900
BODY = "x" * 100
VERSIONS = {"cassandra": "5.0.6", "elasticsearch": "7.17.29"}
KINDS = {"cassandra": "CassandraCluster", "elasticsearch": "ElasticsearchCluster"}
KEYSPACE = "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 1}"
TABLE = "CREATE TABLE shop.orders (id int PRIMARY KEY, body text)"


class Cassandra:
    """One connection."""

    def __init__(self, address, credentials):
        self.session = cql.Session(address, credentials=credentials)

    def begin(self):
        for statement in (KEYSPACE, TABLE):
            self.session.run(statement)

    def write(self, number):
        self.session.run(f"INSERT INTO shop.orders (id, body) VALUES ({number}, '{BODY}')")

    def close(self):
        self.session.socket.close()


class Elasticsearch:
    """One connection."""

    def __init__(self, address, credentials):
        self.headers = {"Content-Type": "application/json"}
        if credentials:
            trust = ssl.create_default_context(cadata=credentials["ca.crt"])
            self.http = http.client.HTTPSConnection(address, 9200, timeout=60, context=trust)
            login = f"{credentials['username']}:{credentials['password']}"
            self.headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        else:
            self.http = http.client.HTTPConnection(address, 9200, timeout=60)
        self.ask("GET", "/_nodes/_local?filter_path=nodes.*.version")

    def ask(self, method, path, body=None):
        self.http.request(method, path, body and json.dumps(body), self.headers)
        answer = self.http.getresponse()
        text = answer.read()
        assert answer.status < 300, (path, answer.status, text[:300])

    def begin(self):
        self.ask("PUT", "/orders", {"settings": {"number_of_replicas": 0, "refresh_interval": "30s"}})

    def write(self, number):
        self.ask("PUT", f"/orders/_doc/{number}", {"body": BODY})

    def close(self):
        self.http.close()


CLIENTS = {"cassandra": Cassandra, "elasticsearch": Elasticsearch}


class Bench:
    def __init__(self, navigator, folder, homes, database):
        self.navigator, self.folder, self.database = navigator, Path(folder), database
        self.environment = {**os.environ, "NAVIGATOR_LOCAL_DIR": str(folder), "NAVIGATOR_LOCAL_ADDRESS": "127.0.0.1:0",
                            "KUBECONFIG": f"{folder}/kubeconfig"}
        home = Path(homes) / f"{database}-{VERSIONS[database]}"
        subprocess.run([ROOT / f"tests/testbed/get-{database}.sh", VERSIONS[database], home], check=True, stdout=subprocess.DEVNULL)
        self.home, self.credentials, self.written = home, {"open": None}, 0

    def run(self, *words):
        return subprocess.run([self.navigator, *map(str, words)], env=self.environment, check=True, capture_output=True, text=True).stdout

    def members(self, name):
        clusters = json.loads(self.run("local", "status", "-o", "json"))["clusters"]
        return next(one for one in clusters if one["name"] == name)

    def until(self, name, nodes):
        """Seconds until all of so many nodes are Ready."""
        begun = time.monotonic()
        while time.monotonic() - begun < PATIENCE:
            seen = self.members(name)
            if seen["ready"] and seen["nodes"] == f"{nodes}/{nodes}":
                return time.monotonic() - begun
            time.sleep(0.5)
        raise SystemExit(f"{name} is not ready with {nodes} nodes: {seen}")

    def founded(self, name):
        pool = {"name": "a", "replicas": 1, "persistence": {"size": "1Gi"}}
        if self.database == "elasticsearch":
            pool["roles"] = ["master", "data", "ingest"]
        spec = {"version": VERSIONS[self.database], "jvm": {"heap": "384Mi"}, "nodePools": [pool]}
        spec["security"] = {"mode": "Secure" if name == "safe" else "Open"}
        manifest = self.folder / f"{name}.yaml"
        manifest.write_text(json.dumps({"apiVersion": "navigator.jetstack.io/v1beta1", "kind": KINDS[self.database],
                                        "metadata": {"name": name}, "spec": spec}))
        self.run("local", "up", "--home", f"{self.database}={self.home}", "-f", manifest)
        took = self.until(name, 1)
        if name == "safe":
            self.run("plugin", "get-credentials", name, "--ca", self.folder / "ca.crt")
            self.credentials[name] = json.loads(self.run("plugin", "get-credentials", name, "--ca", self.folder / "ca.crt", "-o", "json"))
        return took

    def client(self, name):
        return CLIENTS[self.database](self.members(name)["members"][0]["address"], self.credentials[name])

    def rate(self, name):
        """Acknowledged writes a second over connections that stand."""
        clients = [self.client(name) for _ in range(CONNECTIONS)]
        counts, ends = [0] * CONNECTIONS, time.monotonic() + SECONDS
        first, self.written = self.written, self.written + 10_000_000

        def writes(at):
            while time.monotonic() < ends:
                clients[at].write(first + at * 1_000_000 + counts[at])
                counts[at] += 1

        threads = [threading.Thread(target=writes, args=(at,)) for at in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
        return sum(counts) / SECONDS

    def connects(self, name):
        """Milliseconds of a connection, with its login."""
        address, took = self.members(name)["members"][0]["address"], []
        for _ in range(CONNECTS):
            begun = time.monotonic()
            CLIENTS[self.database](address, self.credentials[name]).close()
            took.append((time.monotonic() - begun) * 1000)
        return took

    def memory(self, name):
        """MiB of each pilot that are its own."""
        found = []
        for member in self.members(name)["members"]:
            mark = f"NAVIGATOR_PILOT_NAME={member['pod']}".encode()
            for place in Path("/proc").glob("[0-9]*"):
                try:
                    words = (place / "cmdline").read_bytes().split(b"\0")
                    if words[1:2] == [b"pilot"] and mark in (place / "environ").read_bytes().split(b"\0") and str(self.folder).encode() in words[0]:
                        rollup = (place / "smaps_rollup").read_text()
                        found.append(sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")) / 1024)
                except OSError:
                    continue
        return found

    def all(self):
        rows = {}
        rows["first node Ready, s"] = {name: [self.founded(name)] for name in NAMES}
        for name in NAMES:
            client = self.client(name)
            client.begin()
            client.close()
            self.rate(name)
        rates = {name: [] for name in NAMES}
        for _ in range(ROUNDS):
            for name in NAMES:
                rates[name].append(self.rate(name))
        rows[f"writes a second, {CONNECTIONS} connections"] = rates
        rows["a connection, ms"] = {name: self.connects(name) for name in NAMES}
        joins = {}
        for name in NAMES:
            self.run("plugin", "scale", name, "a=2")
            joins[name] = [self.until(name, 2)]
        rows["second node Ready, s"] = joins
        rows["private memory of a pilot, MiB"] = {name: self.memory(name) for name in NAMES}
        return rows


def shown(figures):
    middle = statistics.median(figures)
    digits = 0 if middle >= 100 else 1
    extremes = f" ({min(figures):.{digits}f}–{max(figures):.{digits}f})" if len(figures) > 1 else ""
    return f"{middle:.{digits}f}{extremes}"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.splitlines()[0])
    navigator, homes, *databases = sys.argv[1:]
    print("| | open | secure |\n|---|---|---|")
    for database in databases or VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            # Databases run as users of their own where this is root.
            os.chmod(folder, 0o755)
            bench = Bench(Path(navigator).resolve(), folder, homes, database)
            try:
                for what, by_name in bench.all().items():
                    print(f"| {database} {VERSIONS[database]}: {what} | {' | '.join(shown(by_name[name]) for name in NAMES)} |", flush=True)
            finally:
                subprocess.run([bench.navigator, "local", "down", "--delete-data"], env=bench.environment, check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
