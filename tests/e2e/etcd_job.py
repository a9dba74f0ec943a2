"""The other store: two API server replicas over etcd, one of them killed, etcd away and back."""
import os
import signal
import subprocess

from bed import BED, ROOT, RUN, away, claim, condition_is, get, kubectl, main, pids, run, say, step, wait
from navigator import remove
from raw import request

URL = "http://10.244.255.1:23790"
PEER = "http://10.244.255.1:23800"
LEASES = "/apis/navigator.jetstack.io/v1beta1/namespaces/etcd/leaderleases"


def start_etcd():
    log = open(RUN / "log/etcd-navigator.log", "a", encoding="utf-8")
    return subprocess.Popen([
        str(BED / "bin/etcd"), "--data-dir", str(RUN / "etcd-navigator"), "--listen-client-urls", URL, "--advertise-client-urls", URL,
        "--listen-peer-urls", PEER, "--initial-advertise-peer-urls", PEER, "--initial-cluster", f"default={PEER}"], stdout=log, stderr=log)


def ready_replicas():
    return get("deployment", "-n", "navigator", "navigator-apiserver")["status"].get("readyReplicas", 0)


def served():
    return request("GET", LEASES)[0] == 200


def job():
    etcd = start_etcd()
    try:
        with step("install with navigator manifest --store etcd"):
            remove()
            manifest = run(ROOT / "bin/navigator", "manifest", "--store", "etcd", "--etcd-servers", URL).stdout
            kubectl("apply", "-f", "-", stdin=manifest)
            wait("two ready replicas", lambda: ready_replicas() == 2 or str(ready_replicas()), 300)
            wait("Available", condition_is("Available", "True", "apiservice", "v1beta1.navigator.jetstack.io"), 300)
            claim("there is no claim", get("pvc", "-n", "navigator") == [])
            kubectl("create", "namespace", "etcd")
        with step("one replica is killed"):
            for number in range(50):
                status, _, body = request("POST", LEASES, {
                    "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "LeaderLease", "metadata": {"name": f"lease-{number}"}})
                claim_created(status, body)
            victims = pids("apiserver")
            claim("two servers run", len(victims) == 2, victims)
            with away("a replica is killed"):
                os.kill(victims[0], signal.SIGKILL)
                wait("every object, from the other one", lambda: len(request("GET", LEASES)[2]["items"]) == 50, 300, every=0.2)
                wait("two ready replicas again", lambda: ready_replicas() == 2 or str(ready_replicas()), 300)
        with step("etcd goes away and comes back"), away("the store is away"):
            etcd.terminate()
            etcd.wait(180)
            wait("no ready replica", lambda: ready_replicas() == 0 or str(ready_replicas()), 300)
            logs = kubectl("logs", "-n", "navigator", "-l", "app.kubernetes.io/component=apiserver", "--tail=50")
            claim("the servers say that the store is unavailable", "store is unavailable" in logs, logs[-2000:])
            etcd = start_etcd()
            wait("two ready replicas again", lambda: ready_replicas() == 2 or str(ready_replicas()), 300)
            wait("the API", lambda: served() or "not yet", 300)
            items = request("GET", LEASES)[2]["items"]
            claim("every object is there", len(items) == 50, len(items))
            say("    50 objects written before are read after")
        kubectl("delete", "namespace", "etcd", timeout=200)
    finally:
        etcd.terminate()


def claim_created(status, body):
    if status != 201:
        claim("an object is created", False, body)


if __name__ == "__main__":
    main(job)
