#!/usr/bin/env python3
"""shared_ring.py NAVIGATOR: a ring of two clusters, each with a CA of its own, is encrypted between its nodes rung by rung, as people say it on both
sides, and opened again; meanwhile a row that is written on one side is read on the other. By `navigator local`; 10 minutes.
"""
import contextlib
import json
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from run import Local, check, cql, home, say, until

VERSION = "5.0.6"
BOTH = ("eu", "us")
RUNGS = ("Off", "Allow", "Prefer", "Required")


def manifest(name, seeds):
    return f"""apiVersion: navigator.jetstack.io/v1beta1
kind: CassandraCluster
metadata: {{name: {name}}}
spec:
  version: "{VERSION}"
  clusterName: orders
  additionalSeeds: {json.dumps(seeds)}
  jvm: {{heap: 384Mi}}
  security: {{mode: Open}}
  nodePools:
  - {{name: a, replicas: 1, datacenter: {name}, rack: r1, persistence: {{size: 1Gi}}}}
"""


class Ring:
    def __init__(self, local, place):
        self.local, self.place, self.row = local, place, 0

    def get(self, kind, name):
        return json.loads(self.local.kubectl("get", kind, name, "-o", "json"))

    def patch(self, name, security, code=0):
        return self.local.kubectl("patch", "cassandracluster", name, "--type", "merge", "-p", json.dumps({"spec": {"security": security}}), code=code)

    def apply(self, name, seeds):
        path = self.place / f"{name}.yaml"
        path.write_text(manifest(name, seeds))
        self.local.kubectl("apply", "-f", path)
        self.local.kubectl("wait", "--for=condition=Ready", f"cassandracluster/{name}", "--timeout=900s", timeout=1000)

    def address(self, name):
        return self.local.address(f"cass-{name}-a-0")

    def run(self, name, text):
        with cql.Session(self.address(name)) as session:
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
    # The other side looks at what it is to trust once a minute.
    ring.patch("eu", {"certificates": {"caRotatedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "caOverlap": "3m"}})
    until("us learns of it", lambda: len(ring.runs("us")[1]["trust"]) == 3)
    until("eu shows a certificate of it", lambda: ring.runs("eu")[1]["authority"] != former)
    ring.reads_each_other()
    until("us forgets the former one", lambda: former not in ring.runs("us")[1]["trust"])
    ring.reads_each_other()
    say("--- down")
    for rung in ("Prefer", "Allow", "Off"):
        ring.goes_to(rung)


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
