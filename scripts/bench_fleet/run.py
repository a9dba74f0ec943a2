#!/usr/bin/env python3
"""run.py NAVIGATOR CROWD [PEER]: what a fleet of clusters costs our API server and controller; and beside them a peer's manager.

Each operator gets a small Kubernetes of its own (tests/parity/world.py), in namespaces of network and processes: etcd, kube-apiserver, and CROWD
(main.go beside this file), which is StatefulSet controller, kubelet and databases. Clusters are made up to each of SIZES (10 100 1000 clusters of
ten, PEER_SIZES 10 100 500 clusters of three): by the operator itself, but of ours only the first SEEDS (10), and the others as copies. SETTLES (60)
seconds after all are ready the fleet is measured for SECONDS (120), then EDITS (5) clusters are edited, one after the other. Our server has a memory
limit of LIMIT (1024) MiB. PEER is a folder with cass-operator's program, `manager`, and its `config` folder; without it no peer is measured.
Prints Markdown. KEEP=1 keeps the logs.
"""
import concurrent.futures
import json
import os
import re
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/parity"))
import world  # noqa: E402

GROUP = "navigator.jetstack.io"
SIZES = [int(size) for size in os.environ.get("SIZES", "10 100 1000").split()]
PEER_SIZES = [int(size) for size in os.environ.get("PEER_SIZES", "10 100 500").split()]
SECONDS = int(os.environ.get("SECONDS", "120"))
EDITS = int(os.environ.get("EDITS", "5"))
SETTLES = int(os.environ.get("SETTLES", "60"))
SEEDS = int(os.environ.get("SEEDS", "10"))
# Memory limit of our server, MiB: it decides how much may be stored.
LIMIT = int(os.environ.get("LIMIT", "1024"))
NODES = 10
PEER_NODES = 3
MACHINES = 10
# How long a fleet may take to be made, and an edit to be carried out.
PATIENCE = 2400
EDITED = 300
FIGURES = "127.0.0.1:9100"
TICK = os.sysconf("SC_CLK_TCK")
# As the manifest sets it.
ALLOCATOR = {"MIMALLOC_GENERIC_COLLECT": "50", "MIMALLOC_MINIMAL_PURGE_SIZE": "16", "MIMALLOC_PAGE_FULL_RETAIN": "0",
             "MIMALLOC_PAGE_RECLAIM_ON_FREE": "1", "MIMALLOC_PURGE_DELAY": "5"}
# The audit log of kube-apiserver would cost it a part of its time.
world.POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "None"}]}


def spent(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def cgroup(name, limit):
    """A cgroup of its own below ours, with this memory limit in MiB."""
    own = {kinds: path for _, kinds, path in (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())}
    one = "memory" in own
    root = Path("/sys/fs/cgroup", "memory" if one else "")
    folder = next(folder for folder in [root / own["memory" if one else ""].lstrip("/"), root] if folder.is_dir()) / name
    folder.mkdir()
    (folder / ("memory.limit_in_bytes" if one else "memory.max")).write_text(str(limit << 20))
    return folder


def memory(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return {name: int(re.search(rf"{what}:\s+(\d+)", status)[1]) / 1024 for name, what in (("private", "RssAnon"), ("most", "VmHWM"))}


def busy():
    """Seconds of all processors that were not idle since the machine's start."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def answered(text):
    found = {}
    for labels, count in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", text, re.MULTILINE):
        key = " ".join(re.search(rf'\b{label}="([^"]*)"', labels)[1] for label in ("verb", "resource"))
        found[key] = found.get(key, 0) + float(count)
    return found


def stamped():
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refused(OSError):
    """An answer of 400 or more, with its text."""


class Bed(world.World):
    """A small Kubernetes, the operator in it, and the crowd."""

    # Processes of the operator, and what a fleet is made of.
    operator, nodes, sizes = (), 0, ()

    def start(self):
        for ca in ("ca", "front-proxy-ca"):
            self.authority(ca)
        self.issue("apiserver", "/CN=kube-apiserver", names=f"DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1,IP:{world.ADDRESS}")
        self.issue("front-proxy-client", "/CN=front-proxy-client", "front-proxy-ca")
        self.issue("admin", "/O=system:masters/CN=admin")
        self.openssl("genrsa", "-out", "sa.key", "2048")
        self.openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        self.kubeconfig("admin")
        self.control_plane()
        for number in range(MACHINES):
            self.machine(f"machine-{number}")
        self.install()
        self.begin_crowd()
        self.say("is up")

    def begin(self, name, *command, before=None, **environment):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=log, stderr=log, preexec_fn=before,
                                                  env={**os.environ, **environment})

    def begin_crowd(self):
        self.begin("crowd", os.environ["CROWD"])
        config = {"server": world.URL, "ca": f"{self.pki}/ca.crt", "cert": f"{self.pki}/admin.crt", "key": f"{self.pki}/admin.key",
                  "role": self.name, "figures": FIGURES, "management": 8080}
        self.running["crowd"].stdin.write(json.dumps(config).encode())
        self.running["crowd"].stdin.close()
        world.until("the crowd", self.runs("crowd", lambda: self.figures()["nodes"] == 0))

    def machine(self, name):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        self.create("/api/v1/nodes", node)
        self.change(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamped(), "lastTransitionTime": stamped()}]}})

    def context(self):
        context = ssl.create_default_context(cafile=self.pki / "ca.crt")
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        return context

    def open(self, path, method="GET", body=None, timeout=60):
        body = body and json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        asked = urllib.request.Request(world.URL + path, body, {"Content-Type": kind, "Accept": "application/json"}, method=method)
        try:
            return urllib.request.urlopen(asked, timeout=timeout, context=self.context())
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: {error.code} {error.read().decode()[:600]}") from error

    def create(self, path, body):
        self.open(path, "POST", body).close()

    def change(self, path, body):
        with self.open(path, "PATCH", body) as answer:
            return json.load(answer)

    def items(self, path):
        """All objects of a list, by pages."""
        found, more = [], ""
        while True:
            with self.open(f"{path}?limit=250{more}") as answer:
                page = json.load(answer)
            found += [{"apiVersion": page["apiVersion"], "kind": page["kind"].removesuffix("List"), **one} for one in page["items"]]
            if not page["metadata"].get("continue"):
                return found
            more = f"&continue={page['metadata']['continue']}"

    def figures(self):
        with urllib.request.urlopen(f"http://{FIGURES}/figures", timeout=10) as answer:
            return json.load(answer)

    def namespace(self, number):
        return f"team-{number:04}"

    def make(self, begun, size):
        self.order(begun, size, {"from": {"namespace": "none", "uid": "none"}, "copied": []})

    def order(self, begun, size, more):
        wanted = {"namespaces": [self.namespace(number) for number in range(begun, size)], "path": self.path("NAMESPACE"), "cluster": self.cluster(), **more}
        asked = urllib.request.Request(f"http://{FIGURES}/make", json.dumps(wanted).encode())
        try:
            urllib.request.urlopen(asked, timeout=PATIENCE).close()
        except urllib.error.HTTPError as error:
            raise world.Failed(error.read().decode()[:600]) from error

    def fill(self, begun, size):
        """Makes clusters up to this size, and waits until all are ready; returns how long that took."""
        for name in self.operator:
            # From here on the most resident memory is counted anew.
            Path(f"/proc/{self.running[name].pid}/clear_refs").write_text("5")
        start = time.monotonic()
        self.make(begun, size)
        self.wait_ready(size)
        return time.monotonic() - start

    def wait_ready(self, size):
        wanted, told = size * self.nodes, 0

        def ready():
            nonlocal told
            for name in self.running:
                self.runs(name, lambda: True)()
            figures = self.figures()
            good = figures["ready"] if figures["ready"] < wanted else sum(map(self.is_ready, self.items(self.all())))
            if time.monotonic() - told > 30:
                told = time.monotonic()
                self.say(f"{size} clusters: {figures['nodes']} nodes, {figures['ready']} ready; {good}; {figures['failures']} failures, "
                         f"last {figures['lastFailure'][:300]}")
            time.sleep(2)
            return figures["ready"] == wanted and good == size
        world.until(f"{size} clusters", ready, PATIENCE)

    def snapshot(self):
        return {"time": time.monotonic(), "busy": busy(), "figures": self.figures(), "requests": self.requests(),
                "spent": {name: spent(process.pid) for name, process in self.running.items()}}

    def rest(self):
        """What the fleet costs while nothing happens."""
        before = self.snapshot()
        time.sleep(SECONDS)
        after = self.snapshot()
        passed = after["time"] - before["time"]
        used = {name: (after["spent"][name] - before["spent"][name]) * 60 / passed for name in self.running}
        others = (after["busy"] - before["busy"]) / passed - sum(used.values()) / 60
        counted = {name: (after["figures"][name] - before["figures"][name]) / passed for name in ("beats", "lists", "watches", "failures")}
        requests = {kind: (count - before["requests"].get(kind, 0)) / passed for kind, count in after["requests"].items()}
        requests = {kind: count for kind, count in requests.items() if count}
        return {"used": used, "others": others, "load": os.getloadavg()[0], "requests": requests, "counted": counted,
                "beat": [after["figures"][name] for name in ("beatMedian", "beat99th")], "lastFailure": after["figures"]["lastFailure"],
                "memory": {name: memory(self.running[name].pid) for name in self.running}}

    def when(self, path, seen):
        """Watches a list from now on; returns an event that is set when the watch is there, and what will hold the moment of a look that is true."""
        with self.open(path + "?limit=1") as answer:
            version = json.load(answer)["metadata"]["resourceVersion"]
        stream = self.open(f"{path}?watch=true&timeoutSeconds={EDITED}&resourceVersion={version}", timeout=EDITED)
        found = concurrent.futures.Future()

        def read():
            try:
                for line in stream:
                    event = json.loads(line)
                    if event["type"] == "MODIFIED" and seen(event["object"]):
                        return found.set_result(time.monotonic())
                found.set_exception(world.Failed(f"the watch of {path} ended"))
            except Exception as error:  # noqa: BLE001 (told to whoever waits)
                found.set_exception(error)
            finally:
                stream.close()
        threading.Thread(target=read, daemon=True).start()
        return found

    def edit(self, number, value):
        """Edits a cluster; returns seconds until its status has seen it, and until the first object that carries it has it."""
        namespace = self.namespace(number)
        with self.open(f"{self.path(namespace)}/{self.cluster()['metadata']['name']}") as answer:
            generation = json.load(answer)["metadata"]["generation"] + 1
        status = self.when(self.path(namespace), lambda one: one.get("status", {}).get("observedGeneration", 0) >= generation)
        carried = self.when(self.carrier(namespace), lambda one: str(value) in json.dumps(one["spec"]))
        start = time.monotonic()
        self.change(f"{self.path(namespace)}/{self.cluster()['metadata']['name']}", self.edited(value))
        times = [found.result(EDITED) - start for found in (status, carried)]
        self.undo(number)
        return times

    def undo(self, number):
        """Takes an edit back that would not come to its end."""

    def measure(self):
        rows, begun = [], 0
        for size in self.sizes:
            took = self.fill(begun, size)
            self.say(f"{size} clusters are ready after {took:.0f} s")
            time.sleep(SETTLES)
            row = {"clusters": size, "nodes": size * self.nodes, "filled": took, **self.rest()}
            self.say(json.dumps(row))
            # Clusters far from each other, and none twice.
            chosen = [begun + (size - begun) * number // EDITS for number in range(EDITS)]
            edits = []
            for number, cluster in enumerate(chosen):
                edits.append(self.edit(cluster, 7000 + number))
                self.say(f"edit of cluster {cluster}: {edits[-1]}")
            row["edits"] = list(zip(*edits))
            rows.append(row)
            # What was measured is told, also when a larger fleet does not come up.
            (self.folder / "rows.json").write_text(json.dumps(rows))
            begun = size

    def requests(self):
        """What kube-apiserver has answered, by verb and resource."""
        with self.open("/metrics") as answer:
            return answered(answer.read().decode())


class Ours(Bed):
    operator, nodes, sizes = ("navigator", "controller"), NODES, SIZES

    def install(self):
        super().install()
        # kube-apiserver finds our server a moment after it says that it did.
        world.until("our kinds", lambda: self.items(self.all()) == [])
        self.begin_controller()

    def begin_controller(self):
        config = self.account("navigator-controller")
        self.begin("controller", os.environ["NAVIGATOR"], "controller", f"--kubeconfig={config}", "--admin-address=127.0.0.1:8081",
                   "--pilot-image=quay.io/jetstack/navigator:v0.2.0", NAVIGATOR_NAMESPACE="navigator", NAVIGATOR_POD_NAME="controller-0", **ALLOCATOR)

    def account(self, name):
        path = f"/api/v1/namespaces/navigator/serviceaccounts/{name}/token"
        token = self.ask(path, "POST", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 14400}})
        return self.kubeconfig(name, "navigator", token=token["status"]["token"])

    def begin_ours(self):
        limited = cgroup(f"{self.folder.parent.name}-{self.folder.name}", LIMIT)
        self.begin("navigator", os.environ["NAVIGATOR"], "apiserver", f"--kubeconfig={self.account('navigator-apiserver')}", "--namespace=navigator",
                   "--secure-port=8443", "--store=embedded", f"--store-path={self.folder}/store", "--audit-log-path=-",
                   before=lambda: (limited / "cgroup.procs").write_text("0"), **ALLOCATOR)

    def make(self, begun, size):
        """The controller makes the first SEEDS clusters. What it made for the first one is copied for all others while no controller runs."""
        seeds = max(begun, min(SEEDS, size))
        if begun < seeds:
            super().make(begun, seeds)
            self.wait_ready(seeds)
        if seeds == size:
            return
        self.running["controller"].terminate()
        self.running["controller"].wait(timeout=world.PATIENCE)
        del self.running["controller"]
        namespace = self.namespace(0)
        uid = self.items(self.path(namespace))[0]["metadata"]["uid"]
        copied = []
        for path in COPIED:
            path = path.replace("NAMESPACE", namespace)
            for one in self.items(path):
                if uid in json.dumps(one["metadata"]):
                    copied.append({"path": path, "body": plain(one)})
        self.order(seeds, size, {"from": {"namespace": namespace, "uid": uid}, "copied": copied})
        self.begin_controller()

    def path(self, namespace):
        return f"/apis/{GROUP}/v1beta1/namespaces/{namespace}/cassandraclusters"

    def all(self):
        return f"/apis/{GROUP}/v1beta1/cassandraclusters"

    def carrier(self, namespace):
        return f"/apis/{GROUP}/v1beta1/namespaces/{namespace}/pilots"

    def cluster(self):
        return {"apiVersion": f"{GROUP}/v1beta1", "kind": "CassandraCluster", "metadata": {"name": "shop"}, "spec": {
            # Open, as before: the pilots are scripted, and show no certificates.
            "version": "5.0.6", "security": {"mode": "Open"},
            "nodePools": [{"name": "a", "datacenter": "eu", "replicas": NODES, "persistence": {"size": "100Gi"},
                           "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1", "memory": "4Gi"}}}]}}

    def edited(self, value):
        return {"spec": {"config": {"hinted_handoff_throttle": f"{value}KiB"}}}

    def undo(self, number):
        # No pilot judges it, so a roll would wait at its first node.
        self.change(f"{self.path(self.namespace(number))}/shop", {"spec": {"config": None}})

    def is_ready(self, cluster):
        return any((one["type"], one["status"]) == ("Ready", "True") for one in cluster.get("status", {}).get("conditions", []))

    def requests(self):
        """Requests that our server has answered, or begun to in the case of watches, by verb and resource."""
        context = self.context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(f"https://{world.ADDRESS}:8443/metrics", timeout=30, context=context) as answer:
            return answered(answer.read().decode())


class Peer(Bed):
    operator, nodes, sizes = ("manager",), PEER_NODES, PEER_SIZES

    def install(self):
        config = Path(os.environ["PEER"]) / "config"
        self.kubectl("create", "-k", str(config / "crd"))
        self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cass-operator"}})
        images = (config / "imageconfig/image_config.yaml").read_text()
        self.create("/api/v1/namespaces/cass-operator/configmaps", {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "image-config", "labels": {"k8ssandra.io/config": "image"}},
            "data": {"image_config.yaml": images}})
        self.create("/apis/storage.k8s.io/v1/storageclasses", {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks"},
                                                               "provisioner": "example.com/disks"})
        # It reads its namespace where a pod finds it. Mounts are this process' own.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/var/run"], check=True)
        place = Path("/var/run/secrets/kubernetes.io/serviceaccount")
        place.mkdir(parents=True)
        (place / "namespace").write_text("cass-operator")
        world.until("its kinds", lambda: self.ask(self.all())["items"] == [])
        self.begin("manager", Path(os.environ["PEER"]) / "manager", "--leader-elect", "--health-probe-bind-address=127.0.0.1:8082",
                   KUBECONFIG=f"{self.folder}/admin.kubeconfig", WATCH_NAMESPACE="")

    def path(self, namespace):
        return f"/apis/cassandra.datastax.com/v1beta1/namespaces/{namespace}/cassandradatacenters"

    def all(self):
        return "/apis/cassandra.datastax.com/v1beta1/cassandradatacenters"

    def carrier(self, namespace):
        return f"/apis/apps/v1/namespaces/{namespace}/statefulsets"

    def cluster(self):
        return {"apiVersion": "cassandra.datastax.com/v1beta1", "kind": "CassandraDatacenter", "metadata": {"name": "eu"}, "spec": {
            "clusterName": "shop", "serverType": "cassandra", "serverVersion": "4.1.2", "managementApiAuth": {"insecure": {}},
            "size": PEER_NODES, "racks": [{"name": f"r{rack}"} for rack in range(PEER_NODES)],
            "storageConfig": {"cassandraDataVolumeClaimSpec": {"storageClassName": "disks", "accessModes": ["ReadWriteOnce"],
                                                               "resources": {"requests": {"storage": "100Gi"}}}},
            "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
            "config": {"cassandra-yaml": {"num_tokens": 16}, "jvm-server-options": {"initial_heap_size": "1G", "max_heap_size": "1G"}}}}

    def edited(self, value):
        return {"spec": {"config": {"cassandra-yaml": {"hinted_handoff_throttle": f"{value}KiB"}}}}

    def is_ready(self, datacenter):
        status = datacenter.get("status", {})
        good = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions", []))
        return good and status.get("cassandraOperatorProgress") == "Ready"


# What the controller makes for a cluster. StatefulSets last: then their pods are made.
COPIED = ["/api/v1/namespaces/NAMESPACE/services", "/api/v1/namespaces/NAMESPACE/serviceaccounts",
          "/apis/rbac.authorization.k8s.io/v1/namespaces/NAMESPACE/roles", "/apis/rbac.authorization.k8s.io/v1/namespaces/NAMESPACE/rolebindings",
          "/apis/policy/v1/namespaces/NAMESPACE/poddisruptionbudgets", f"/apis/{GROUP}/v1beta1/namespaces/NAMESPACE/pilots",
          "/apis/apps/v1/namespaces/NAMESPACE/statefulsets"]


def plain(one):
    """An object as it can be created in another namespace."""
    one = {key: value for key, value in one.items() if key != "status"}
    one["metadata"] = {key: one["metadata"][key] for key in ("name", "labels", "annotations", "ownerReferences") if key in one["metadata"]}
    if one.get("spec", {}).get("clusterIP", "None") != "None":
        one["spec"] = {key: value for key, value in one["spec"].items() if key not in ("clusterIP", "clusterIPs")}
    return one


WORLDS = {"navigator": Ours, "cass-operator": Peer}


def inside(name, folder):
    """In namespaces of its own: one operator, all its sizes."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{world.ADDRESS}/32", "dev", "lo"], check=True)
    bed = WORLDS[name](name, folder)
    try:
        bed.start()
        bed.measure()
    except (world.Failed, OSError) as error:
        bed.say(f"FAILED: {error}")
        sys.exit(1)
    finally:
        bed.end()


def measured(name, folder):
    """Runs one world, all of which ends with its first process, and that with this one; returns its rows, and whether that is all of them."""
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", sys.executable, sys.argv[0], "--inside", name, folder]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    ended = subprocess.run(["setpriv", "--pdeathsig", "KILL", "--", command[0], *user, *map(str, command[1:])], check=False)
    for left in Path("/sys/fs/cgroup").rglob(f"{folder.parent.name}-{folder.name}*"):
        left.rmdir()
    rows = folder / "rows.json"
    return json.loads(rows.read_text()) if rows.exists() else [], ended.returncode == 0


def spread(values):
    return f"{statistics.median(values):.2f}, {max(values):.2f}"


def table(rows, operator, carrier):
    names = {"navigator": "server", "controller": "controller", "manager": "manager"}
    heads = ["clusters", "nodes"]
    for name in operator:
        heads += [f"{names[name]}: s of a processor per minute", "private, most while filling, MiB"]
    heads += ["kube-apiserver, etcd: s per minute", "requests/s at our server" if "navigator" in operator else "requests/s at kube-apiserver"]
    heads += ["edit to status, s: median, worst", f"edit to {carrier}", "filled in, s", "load, cores of others"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in rows:
        cells = [str(row["clusters"]), str(row["nodes"])]
        for name in operator:
            cells += [f"{row['used'][name]:.2f}", f"{row['memory'][name]['private']:.0f}, {row['memory'][name]['most']:.0f}"]
        cells.append(f"{row['used']['kube-apiserver']:.1f}, {row['used']['etcd']:.1f}")
        kinds = {verb: sum(count for kind, count in row["requests"].items() if kind.startswith(verb)) for verb in ("PATCH", "LIST", "WATCH")}
        cells.append(f"{sum(row['requests'].values()):.1f}: " + ", ".join(f"{count:.1f} {verb}" for verb, count in kinds.items() if count >= 0.05))
        cells += [spread(times) for times in row["edits"]]
        cells += [f"{row['filled']:.0f}", f"{row['load']:.1f}, {row['others']:.2f}"]
        print("| " + " | ".join(cells) + " |")
    print()


def main():
    # A run that is ended tidies up, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if sys.argv[1] == "--inside":
        return inside(sys.argv[2], Path(sys.argv[3]))
    os.environ["NAVIGATOR"], os.environ["CROWD"] = (str(Path(path).resolve()) for path in sys.argv[1:3])
    os.environ["PEER"] = str(Path(sys.argv[3]).resolve()) if sys.argv[3:] else ""
    folder = Path(tempfile.mkdtemp(prefix="navigator-fleet-"))
    only = os.environ.get("ONLY", "navigator cass-operator").split()
    found = {}
    try:
        for name in only:
            if name == "navigator" or os.environ["PEER"]:
                (folder / name).mkdir()
                found[name] = measured(name, folder / name)
        for name, (rows, _) in found.items():
            print(f"\n{name}, {stamped()}:\n")
            table(rows, WORLDS[name].operator, {"navigator": "its first Pilot", "cass-operator": "its first StatefulSet"}[name])
    finally:
        if os.environ.get("KEEP"):
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    short = [name for name, (_, whole) in found.items() if not whole]
    if short:
        sys.exit(f"not all sizes were measured: {' '.join(short)}")


if __name__ == "__main__":
    main()
