"""The kill run: the API server and the controller are killed (-9) while a cluster is made, joined, scaled and deleted.

No acknowledged object may be missing, nothing may exist twice, every row must be there. And once, the store's volume
is wiped under a running cluster: no database object may disappear.
"""
import http.client
import json
import os
import shutil
import signal
import ssl
import threading
import time
from pathlib import Path

from bed import RUN, Failed, away, claim, get, kubectl, main, pids, say, step
from cluster import Cassandra
from navigator import servers
from raw import request

NS = "killed"
TARGET = Cassandra(NS)
OURS = f"/apis/navigator.jetstack.io/v1beta1/namespaces/{NS}"
ROWS = 10_000


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
    with step("the store's volume is wiped under a running cluster"):
        wiped_store(writer)
    with step("deletion under kills"):
        TARGET.delete("--wait=false")
        kill("controller", "deletion", has_pods)
        # As soon as the other one is back: by then nothing may be left.
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


def uids():
    """Every object of the namespace that must outlive the store, and ours."""
    kinds = ("statefulsets", "services", "pods", "pvc", "cassandraclusters", "pilots")
    return {kind: TARGET.uids(kind) for kind in kinds}


def wiped_store(writer):
    """Empties the store's volume, starts the server, waits longer than garbage collection takes, puts the store back."""
    claim_ = get("pvc", "-n", "navigator", "navigator-apiserver")
    volume = Path(get("pv", claim_["spec"]["volumeName"])["spec"]["local"]["path"])
    aside = volume.parent / "aside"
    before = uids()
    claim("there is something to lose", len(before["pods"]) == 2 and before["services"] and len(before["statefulsets"]) == 1, before)
    with away("the store is wiped"):
        # Nothing is acknowledged after the copy, and the copy is of a store that is closed.
        with writer.may_write:
            servers(0)
            shutil.copytree(volume, aside, dirs_exist_ok=False)
            empty(volume)
        servers(1)
        refused = TARGET.wait("a server that refuses", says_what_happened, 400)
        say(f"    the server says: {refused}")
        asked, ends = 0, time.monotonic() + 90
        while time.monotonic() < ends:
            status, _, body = request("GET", f"{OURS}/cassandraclusters/{TARGET.name}")
            if status != 503:
                raise Failed(f"a wiped store answered {status}: {body}")
            for kind in ("statefulsets", "services", "pods", "pvc"):
                still = TARGET.uids(kind)
                if set(before[kind]) - set(still):
                    raise Failed(f"{kind} disappeared: {before[kind]}, {still}")
            asked += 1
            time.sleep(5)
        claim(f"each of {asked} answers in 90 s was 503, and no database object disappeared", asked >= 5, asked)
        servers(0)
        empty(volume)
        for entry in aside.iterdir():
            shutil.copytree(entry, volume / entry.name) if entry.is_dir() else shutil.copy2(entry, volume / entry.name)
        for entry in [volume, *volume.rglob("*")]:
            os.chown(entry, 65532, 65532)
        shutil.rmtree(aside)
        servers(1)
        TARGET.wait("the API with the old store", lambda: get(*TARGET.object) is not None, 400)
        TARGET.ready(deadline=300)
        after = TARGET.wait("every object", lambda: [uids()], 60)[0]
    claim("the same objects are there as before", after == before, (before, after))


def empty(volume):
    for entry in list(volume.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def says_what_happened():
    """The API's own words about a store that is not the one it has been using, or what else was seen."""
    status, _, body = request("GET", f"{OURS}/cassandraclusters")
    message = body.get("message", "") if isinstance(body, dict) else str(body)
    return [message] if status == 503 and "but this installation has been using" in message else f"{status}: {message}"


if __name__ == "__main__":
    main(job)
