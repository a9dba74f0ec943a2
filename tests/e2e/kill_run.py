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

from bed import ROOT, RUN, Failed, claim, condition_is, get, kubectl, main, nodes_ready, pids, say, step, wait
from cql import Session

NS, NAME = "killed", "small"
SET = f"cass-{NAME}-a"
CLUSTER = ("cassandracluster", "-n", NS, NAME)
ROWS = 10_000
KILLS = []


class Writer(threading.Thread):
    """Creates objects all the time, through kube-apiserver, and remembers each that was acknowledged."""

    def __init__(self):
        super().__init__(daemon=True)
        self.acknowledged, self.refused, self.ended, self.may_write = set(), 0, threading.Event(), threading.Lock()

    def run(self):
        pki, number = RUN / "pki", 0
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        path = f"/apis/navigator.jetstack.io/v1beta1/namespaces/{NS}/leaderleases"
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
    return {kind: len(get(kind, "-n", NS)) for kind in kinds}


def kill(applet, during):
    """Kills an applet's process and waits until another one serves."""
    victims = wait(f"a running {applet}", lambda: pids(applet) or "none", 300)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    wait(f"another {applet}", lambda: bool(set(pids(applet)) - set(victims)) or "none yet", 400, every=0.2)
    if applet == "apiserver":
        wait("the API", lambda: get("cassandraclusters", "-n", NS) is not None, 120, every=0.2)
    away = time.monotonic() - begun
    KILLS.append((applet, during, away))
    say(f"    killed {applet} during {during}: away {away:.1f} s; {counts()}")


def nothing_twice():
    seen = counts()
    claim("no second StatefulSet", seen["statefulsets"] <= 1, seen)
    pilots = sorted(pilot["metadata"]["name"] for pilot in get("pilots", "-n", NS))
    claim("Pilots are those of the pods, once each", pilots == sorted(set(pilots)) and
          all(name in (f"{SET}-0", f"{SET}-1") for name in pilots), pilots)


def scale(replicas):
    kubectl("patch", *CLUSTER, "--type", "json",
            "-p", json.dumps([{"op": "replace", "path": "/spec/nodePools/0/replicas", "value": replicas}]))


def pod_ip(ordinal):
    return get("pod", "-n", NS, f"{SET}-{ordinal}")["status"]["podIP"]


def job():
    kubectl("create", "namespace", NS)
    writer = Writer()
    writer.start()
    with step("bootstrap under kills"):
        kubectl("apply", "-n", NS, "-f", ROOT / "deploy/samples/cassandra-small.yaml")
        kill("controller", "bootstrap")
        wait("the first pod", lambda: get("pod", "-n", NS, f"{SET}-0") is not None or str(counts()), 300)
        kill("apiserver", "bootstrap")
        wait("Ready", condition_is("Ready", "True", *CLUSTER), 600)
        nothing_twice()
    with step(f"write {ROWS} rows"):
        with Session(pod_ip(0)) as session:
            session.write(ROWS)
    with step("scale-out under kills"):
        scale(2)
        kill("controller", "scale-out")
        kill("apiserver", "scale-out")
        wait("the second pod", lambda: get("pod", "-n", NS, f"{SET}-1") is not None or str(counts()), 300)
    with step("join under kills"):
        kill("apiserver", "join")
        kill("controller", "join")
        wait("2/2 nodes", nodes_ready(CLUSTER, 2), 600)
        wait("Ready", condition_is("Ready", "True", *CLUSTER), 300)
        nothing_twice()
        with Session(pod_ip(1)) as session:
            found = session.read(ROWS)
        claim(f"all {ROWS} rows are read through the new node", found == ROWS, found)
    with step("the store's volume is wiped under a running cluster"):
        wiped_store(writer)
    with step("deletion under kills"):
        kubectl("delete", *CLUSTER, "--wait=false")
        kill("controller", "deletion")
        kill("apiserver", "deletion")
        wait("nothing left", lambda: all(
            counts()[kind] == 0 for kind in ("cassandraclusters", "pilots", "statefulsets", "pods")) or str(counts()), 400)
        claim("the claims are left", counts()["pvc"] == 2, counts())
    writer.stop()
    with step("what was acknowledged"):
        there = {lease["metadata"]["name"] for lease in get("leaderleases", "-n", NS)}
        missing = writer.acknowledged - there
        say(f"    {len(writer.acknowledged)} objects acknowledged, {writer.refused} requests refused while a server was away")
        claim("no acknowledged object is missing", len(writer.acknowledged) > 50 and not missing, sorted(missing)[:10])
        claim("at least 8 kills", len(KILLS) >= 8, KILLS)
    kubectl("delete", "namespace", NS, timeout=500)


def wiped_store(writer):
    """Empties the store's volume, restarts the server, waits longer than garbage collection takes, puts the store back."""
    claim_ = get("pvc", "-n", "navigator", "navigator-apiserver")
    volume = Path(get("pv", claim_["spec"]["volumeName"])["spec"]["local"]["path"])
    aside = volume.parent / "aside"
    before = counts()
    owned = {thing["metadata"]["uid"] for kind in ("statefulsets", "services", "pods") for thing in get(kind, "-n", NS)}
    # What is acknowledged between the copy and the wipe is lost by this test, not by the server.
    with writer.may_write:
        shutil.copytree(volume, aside, dirs_exist_ok=False)
        for entry in volume.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        new_server()
    refused = wait("a server that refuses", says_what_happened, 400)
    say(f"    the server says: {refused}")
    ends = time.monotonic() + 90
    while time.monotonic() < ends:
        answer = kubectl("get", "--raw", f"/apis/navigator.jetstack.io/v1beta1/namespaces/{NS}/cassandraclusters/{NAME}", check=False)
        if answer.returncode == 0 or "NotFound" in answer.stderr:
            raise Failed(f"a wiped store answered {answer.stdout}{answer.stderr}")
        still = {thing["metadata"]["uid"] for kind in ("statefulsets", "services", "pods") for thing in get(kind, "-n", NS)}
        if owned - still:
            raise Failed(f"{len(owned - still)} database objects disappeared")
        time.sleep(5)
    claim("no database object disappeared in 90 s", True)
    kubectl("scale", "deployment", "-n", "navigator", "navigator-apiserver", "--replicas=0")
    wait("no server", lambda: pids("apiserver") == [], 120)
    for entry in list(volume.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for entry in aside.iterdir():
        shutil.copytree(entry, volume / entry.name) if entry.is_dir() else shutil.copy2(entry, volume / entry.name)
    for entry in [volume, *volume.rglob("*")]:
        os.chown(entry, 65532, 65532)
    shutil.rmtree(aside)
    kubectl("scale", "deployment", "-n", "navigator", "navigator-apiserver", "--replicas=1")
    wait("the API with the old store", lambda: get(*CLUSTER) is not None, 400)
    wait("Ready", condition_is("Ready", "True", *CLUSTER), 300)
    claim("everything is as before", counts() == before, (before, counts()))


def new_server():
    """Another pod, so that the kubelet's back-off for crashed containers starts over."""
    for pod in get("pods", "-n", "navigator", "-l", "app.kubernetes.io/component=apiserver"):
        kubectl("delete", "pod", "-n", "navigator", pod["metadata"]["name"], "--grace-period=1")


def says_what_happened():
    """The server's own words about its store, or what else was seen."""
    answer = kubectl("get", "--raw", f"/apis/navigator.jetstack.io/v1beta1/namespaces/{NS}/cassandraclusters", check=False)
    for pod in get("pods", "-n", "navigator", "-l", "app.kubernetes.io/component=apiserver"):
        logs = kubectl("logs", "-n", "navigator", pod["metadata"]["name"], "--tail=20", check=False)
        for line in reversed(logs.stdout.splitlines()):
            if "store" in line.lower() and ("ERROR" in line or "WARN" in line):
                return [line]
    return f"exit {answer.returncode}: {answer.stderr.strip()}"


if __name__ == "__main__":
    main(job)
