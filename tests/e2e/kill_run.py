"""The kill run: the API server and the controller are killed (-9) while a cluster is made, joined, scaled and deleted.

No acknowledged object may be missing, nothing may exist twice, every row must be there. In CI install_job makes and deletes in this way the
Cassandra that Navigator is installed over.
"""
import http.client
import json
import os
import signal
import ssl
import threading
import time

from bed import RUN, away, claim, kubectl, main, pids, say, step
from cluster import Cassandra
from navigator import install

NS = "killed"
ROWS = 3_000


class Writer(threading.Thread):
    """Creates objects in a namespace all the time, through kube-apiserver, and remembers each that was acknowledged. Whoever holds `may_write`
    keeps it waiting."""

    def __init__(self, namespace):
        super().__init__(daemon=True)
        self.path = f"/apis/navigator.jetstack.io/v1beta1/namespaces/{namespace}/leaderleases"
        self.acknowledged, self.refused, self.ended, self.may_write = set(), 0, threading.Event(), threading.Lock()

    def run(self):
        pki, number = RUN / "pki", 0
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        while not self.ended.is_set():
            number += 1
            self.write(context, f"written-{number}")
            self.ended.wait(0.1)

    def write(self, context, name):
        body = json.dumps({"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "LeaderLease", "metadata": {"name": name}})
        with self.may_write:
            try:
                connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=context, timeout=10)
                connection.request("POST", self.path, body, {"Content-Type": "application/json"})
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


def counts(target):
    """How many of each kind there are in the namespace."""
    kinds = ("cassandraclusters", "pilots", "statefulsets", "pods", "services", "pvc")
    return {kind: len(target.get(kind)) for kind in kinds}


def kill(target, applet, during, goes_on=lambda: True):
    """Kills an applet's process, and waits until another one serves; returns whether it fell into what was going on."""
    victims = target.wait(f"a running {applet}", lambda: pids(applet) or "none", 300)
    claim(f"one {applet} runs", len(victims) == 1, victims)
    went_on, begun = goes_on(), time.monotonic()
    with away(f"{applet} is killed"):
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        target.wait(f"another {applet}", lambda: bool(set(pids(applet)) - set(victims)) or "none yet", 400, every=0.2)
        if applet == "apiserver":
            target.wait("the API", lambda: target.get("cassandraclusters") is not None, 300, every=0.2)
        took = time.monotonic() - begun
        seen = target.wait("the API, for what there is", lambda: [counts(target)], 300)[0]
    say(f"    killed {applet} {'during' if went_on else 'after'} {during}: away {took:.1f} s; {seen}")
    return went_on


def kills(target, applets, during, goes_on):
    """Kills one after the other; at least one kill falls into what goes on. The second may come late, when the API was away long from the first."""
    hits = [kill(target, applet, during, goes_on) for applet in applets]
    claim(f"{during} went on when {' or '.join(applets)} was killed", any(hits), (hits, counts(target)))


def nothing_twice(target, nodes):
    """One StatefulSet, and for each node one pod, one claim and one Pilot, no more and no other ones."""
    names = [target.pod_name(number) for number in range(nodes)]
    claims = [target.claim_name(number) for number in range(nodes)]
    wanted = {"statefulsets": [target.set], "pods": names, "pilots": names, "pvc": claims}
    seen = {kind: target.names(kind) for kind in wanted}
    claim("there is each thing once, and nothing else", seen == wanted, seen)


def bootstrap(target):
    def is_not_ready():
        return (target.told("Ready") or [None])[0] != "True"
    with step("bootstrap under kills"):
        target.apply()
        kills(target, ["controller"], "bootstrap", is_not_ready)
        target.wait("the first pod", lambda: target.pod(0) is not None or str(counts(target)))
        kills(target, ["apiserver"], "bootstrap", is_not_ready)
        target.ready()
        nothing_twice(target, 1)
    with step(f"write {ROWS} rows"):
        target.write(ROWS)


def scale_out(target):
    def has_one():
        return target.status().get("readyReplicas") != 2
    with step("scale-out under kills"):
        target.scale(2)
        kills(target, ["controller", "apiserver"], "scale-out", has_one)
        target.wait("the second pod", lambda: target.pod(1) is not None or str(counts(target)))
    with step("join under kills"):
        kills(target, ["apiserver", "controller"], "join", has_one)
        target.ready(nodes=2)
        nothing_twice(target, 2)
        target.has_rows(ROWS, through=1, said="are read through the new node")


def deletion(target, claims):
    with step("deletion under kills"):
        target.delete("--wait=false")
        # The API server is killed as soon as the controller is back; the deletion may be done by then.
        kills(target, ["controller", "apiserver"], "deletion", lambda: target.pods() != [])
        target.wait("nothing left", lambda: all(
            counts(target)[kind] == 0 for kind in ("cassandraclusters", "pilots", "statefulsets", "pods")) or str(counts(target)), 600)
        claim("the claims are left", counts(target)["pvc"] == claims, counts(target))


def nothing_is_missing(target, writer):
    writer.stop()
    with step("what was acknowledged"):
        there = set(target.names("leaderleases"))
        missing = writer.acknowledged - there
        say(f"    {len(writer.acknowledged)} objects acknowledged, {writer.refused} requests refused while a server was away")
        claim("no acknowledged object is missing", len(writer.acknowledged) > 50 and not missing, sorted(missing)[:10])


def job():
    target, writer = Cassandra(NS), Writer(NS)
    install()
    kubectl("create", "namespace", NS)
    writer.start()
    bootstrap(target)
    scale_out(target)
    deletion(target, claims=2)
    nothing_is_missing(target, writer)
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
