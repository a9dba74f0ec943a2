#!/usr/bin/env python3
"""hostile.py NAVIGATOR CROWD: large objects with the label of ours, made by somebody with few rights in one namespace, end no controller.

The small Kubernetes of run.py, with scripted nodes. CLUSTERS (30) clusters of one node are made, in how long is printed. Then one namespace gets
OBJECTS (500) Secrets of 1 MiB, and other kinds up to what Kubernetes takes of each. The controller, which has the memory of the manifest, is
restarted, and makes as many clusters again. It fails if the controller's process ends, if a cluster is not made, or if that of the
hostile namespace is not Ready once the objects are deleted. KINDS names the kinds. KEEP=1 keeps the logs.
"""
import base64
import concurrent.futures
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import run
import world

CLUSTERS = int(os.environ.get("CLUSTERS") or "30")
OBJECTS = int(os.environ.get("OBJECTS") or "500")
KINDS = (os.environ.get("KINDS") or "secrets configmaps serviceaccounts services roles statefulsets persistentvolumeclaims").split()
# Of the manifest, MiB.
MEMORY = 256
HOSTILE = "tenant"
# Of a cluster that is in that namespace, too.
LABELS = {"app.kubernetes.io/managed-by": "navigator", "navigator.jetstack.io/cassandra-cluster-name": "shop"}
# Of all annotations of an object.
NOTES = {"example.com/large": "x" * (250 << 10)}


def large(kind, number):
    """The path of a kind's collection, and the largest object that Kubernetes takes of it."""
    core, rbac, apps = "/api/v1", "/apis/rbac.authorization.k8s.io/v1", "/apis/apps/v1"
    body = {"metadata": {"name": f"large-{number}", "labels": LABELS, "annotations": NOTES}}
    if kind == "secrets":
        body["data"] = {"f": base64.b64encode(os.urandom(700 << 10)).decode()}
        body["metadata"].pop("annotations")
    elif kind == "configmaps":
        body["data"] = {"f": base64.b64encode(os.urandom(700 << 10)).decode()}
        body["metadata"].pop("annotations")
    elif kind == "services":
        body["spec"] = {"clusterIP": "None"}
    elif kind == "roles":
        body["rules"] = []
    elif kind == "statefulsets":
        variables = [{"name": f"A{at}", "value": "x" * 700} for at in range(1500)]
        body["spec"] = {"replicas": 0, "serviceName": "x", "selector": {"matchLabels": LABELS}, "template": {
            "metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "i", "env": variables}]}}}
    elif kind == "persistentvolumeclaims":
        body["spec"] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    api = rbac if kind == "roles" else apps if kind == "statefulsets" else core
    return f"{api}/namespaces/{HOSTILE}/{kind}", body


class Attacked(run.Ours):
    nodes = 1

    def begin_controller(self):
        limited = run.cgroup(f"{self.folder.parent.name}-{self.folder.name}-controller-{int(time.monotonic())}", MEMORY)
        config = self.account("navigator-controller")
        self.begin("controller", os.environ["NAVIGATOR"], "controller", f"--kubeconfig={config}", "--admin-address=127.0.0.1:8081",
                   "--pilot-image=quay.io/jetstack/navigator:v0.2.0", NAVIGATOR_NAMESPACE="navigator", NAVIGATOR_POD_NAME="controller-0",
                   before=lambda: (limited / "cgroup.procs").write_text("0"), **run.ALLOCATOR)

    def make(self, begun, size):
        run.Bed.make(self, begun, size)

    def cluster(self):
        cluster = super().cluster()
        cluster["spec"]["nodePools"][0]["replicas"] = 1
        return cluster

    def restart_controller(self):
        self.running["controller"].terminate()
        self.running["controller"].wait(timeout=world.PATIENCE)
        self.begin_controller()

    def attack(self):
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOSTILE}})
        self.create(self.path(HOSTILE), self.cluster())
        for kind in KINDS:
            begun = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: self.create(*large(kind, number)), range(OBJECTS)))
            most = run.memory(self.running["controller"].pid)["most"] if self.running["controller"].poll() is None else 0
            self.say(f"{OBJECTS} {kind} after {time.monotonic() - begun:.0f} s; most memory of the controller {most:.0f} MiB")

    def measure(self):
        usual = self.fill(0, CLUSTERS)
        before = run.memory(self.running["controller"].pid)
        self.say(f"{CLUSTERS} clusters after {usual:.0f} s; the controller has {before}")
        self.attack()
        if self.running["controller"].poll() is not None:
            raise world.Failed(f"the controller ended: {self.running['controller'].returncode}")
        self.restart_controller()
        took = self.fill(CLUSTERS, 2 * CLUSTERS)
        after = run.memory(self.running["controller"].pid)
        self.told()
        self.say(f"{CLUSTERS} more clusters after {took:.0f} s, from the controller's restart on; the controller has {after}")
        self.recover()

    def wait_ready(self, size):
        """Waits for clusters of others. That of the hostile namespace may be left alone."""
        def ready():
            for name in self.running:
                self.runs(name, lambda: True)()
            theirs = [one for one in self.items(self.all()) if one["metadata"]["namespace"] != HOSTILE]
            good = sum(map(self.is_ready, theirs))
            time.sleep(1)
            return good == size or f"{good} of {size} clusters are ready"
        world.until(f"{size} clusters", ready, run.PATIENCE)

    def recover(self):
        """Deletes the objects; the cluster of that namespace is Ready."""
        begun = time.monotonic()
        for kind in KINDS:
            path = large(kind, 0)[0]
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: self.open(f"{path}/large-{number}", "DELETE").close(), range(OBJECTS)))

        def ready():
            (own,) = self.items(self.path(HOSTILE))
            return self.is_ready(own) or json.dumps(own.get("status", {}).get("conditions"))
        world.until(f"the cluster of {HOSTILE} is Ready", ready, run.EDITED)
        self.say(f"the cluster of {HOSTILE} is Ready {time.monotonic() - begun:.0f} s after the objects began to be deleted")

    def told(self):
        """Says what the cluster of the hostile namespace shows."""
        (own,) = self.items(self.path(HOSTILE))
        shown = [f"{one['type']}={one['status']} {one['reason']}" for one in own.get("status", {}).get("conditions", []) if one["type"] in ("Ready", "Stalled")]
        self.say(f"the cluster of {HOSTILE}: {', '.join(shown)}")


run.WORLDS = {"navigator": Attacked}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if sys.argv[1] == "--inside":
        return run.inside(sys.argv[2], Path(sys.argv[3]))
    os.environ["NAVIGATOR"], os.environ["CROWD"] = (str(Path(path).resolve()) for path in sys.argv[1:3])
    folder = Path(tempfile.mkdtemp(prefix="navigator-hostile-"))
    (folder / "navigator").mkdir()
    try:
        _, passed = run.measured("navigator", folder / "navigator")
    finally:
        if os.environ.get("KEEP"):
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
