"""The kill run: the API server and the controller are killed (-9) while a cluster is made, joined, scaled and deleted.

No acknowledged object may be missing, nothing may exist twice, every row must be there.
"""
import http.client
import json
import os
import signal
import ssl
import threading
import time

from bed import RUN, away, claim, get, kubectl, main, pids, say, step
from cluster import Cassandra

NS = "killed"
TARGET = Cassandra(NS)
OURS = f"/apis/navigator.jetstack.io/v1beta1/namespaces/{NS}"
ROWS = 3_000


class Writer(threading.Thread):
    """Creates objects all the time, through kube-apiserver, and remembers each that was acknowledged."""

    def __init__(self):
        super().__init__(daemon=True)
        self.acknowledged, self.refused, self.ended, self.may_write = set(), 0, threading.Event(), threading.Lock()

    def run(self):
        pki, number = RUN / "pki", 0
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        path = f"{OURS}/leaderleases"
        while not self.ended.is_set():
            number += 1
            self.write(context, path, f"written-{number}")
            self.ended.wait(0.1)

    def write(self, context, path, name):
        body = json.dumps({"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "LeaderLease", "metadata": {"name": name}})
        with self.may_write:
            try:
                connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=context, timeout=10)
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                if connection.getresponse().status == 201:
                    self.acknowledged.add(name)
                else:
                    self.refused += 1
                connection.close()
            except (OSError, http.client.HTTPException):
                self.refused += 1

    def stop(self):
        self.ended.set()
        self.join(30)


def counts():
    """How many of each kind there are in the namespace."""
    kinds = ("cassandraclusters", "pilots", "statefulsets", "pods", "services", "pvc")
    return {kind: len(TARGET.get(kind)) for kind in kinds}


def kill(applet, during, goes_on=None):
    """Kills an applet's process, while something goes on where that can be told, and waits until another one serves."""
    victims = TARGET.wait(f"a running {applet}", lambda: pids(applet) or "none", 300)
    claim(f"one {applet} runs", len(victims) == 1, victims)
    if goes_on:
        claim(f"{during} goes on when it is killed", goes_on(), counts())
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    with away(f"{applet} is killed"):
        TARGET.wait(f"another {applet}", lambda: bool(set(pids(applet)) - set(victims)) or "none yet", 400, every=0.2)
        if applet == "apiserver":
            TARGET.wait("the API", lambda: TARGET.get("cassandraclusters") is not None, 120, every=0.2)
        took = time.monotonic() - begun
        seen = TARGET.wait("the API, for what there is", lambda: [counts()], 60)[0]
    say(f"    killed {applet} during {during}: away {took:.1f} s; {seen}")


def is_not_ready():
    return (TARGET.told("Ready") or [None])[0] != "True"


def has_not(nodes):
    """For kill(): are there not yet as many nodes?"""
    return lambda: TARGET.status().get("readyReplicas") != nodes


def has_pods():
    return TARGET.pods() != []


def nothing_twice(nodes):
    """One StatefulSet, and for each node one pod, one claim and one Pilot, no more and no other ones."""
    names = [TARGET.pod_name(number) for number in range(nodes)]
    claims = [TARGET.claim_name(number) for number in range(nodes)]
    wanted = {"statefulsets": [TARGET.set], "pods": names, "pilots": names, "pvc": claims}
    seen = {kind: TARGET.names(kind) for kind in wanted}
    claim("there is each thing once, and nothing else", seen == wanted, seen)


def job():
    kubectl("create", "namespace", NS)
    writer = Writer()
    writer.start()
    with step("bootstrap under kills"):
        TARGET.apply()
        kill("controller", "bootstrap", is_not_ready)
        TARGET.wait("the first pod", lambda: TARGET.pod(0) is not None or str(counts()))
        kill("apiserver", "bootstrap", is_not_ready)
        TARGET.ready()
        nothing_twice(1)
    with step(f"write {ROWS} rows"):
        TARGET.write(ROWS)
    with step("scale-out under kills"):
        TARGET.scale(2)
        kill("controller", "scale-out", has_not(2))
        kill("apiserver", "scale-out", has_not(2))
        TARGET.wait("the second pod", lambda: TARGET.pod(1) is not None or str(counts()))
    with step("join under kills"):
        kill("apiserver", "join", has_not(2))
        kill("controller", "join", has_not(2))
        TARGET.ready(nodes=2)
        nothing_twice(2)
        TARGET.has_rows(ROWS, through=1, said="are read through the new node")
    with step("deletion under kills"):
        TARGET.delete("--wait=false")
        kill("controller", "deletion", has_pods)
        # The API server is killed as soon as the controller is back; the deletion may be done by then.
        kill("apiserver", "deletion")
        TARGET.wait("nothing left", lambda: all(
            counts()[kind] == 0 for kind in ("cassandraclusters", "pilots", "statefulsets", "pods")) or str(counts()), 400)
        claim("the claims are left", counts()["pvc"] == 2, counts())
    writer.stop()
    with step("what was acknowledged"):
        there = set(TARGET.names("leaderleases"))
        missing = writer.acknowledged - there
        say(f"    {len(writer.acknowledged)} objects acknowledged, {writer.refused} requests refused while a server was away")
        claim("no acknowledged object is missing", len(writer.acknowledged) > 50 and not missing, sorted(missing)[:10])
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
