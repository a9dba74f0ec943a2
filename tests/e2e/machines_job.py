"""Machines are upgraded: five hollow kubelets (kubemark: the kubelet's own code over a runtime that only remembers) go from one minor version to
the next, while a coordinator that is killed at every change drains them, and databases on the bed's real machine serve clients. Then that machine
is rebooted, as far as a bed can: its kubelet starts again and tells another boot.

Not part of CI: `make e2e-machines`.
"""
import json
import os
import subprocess
import threading
import time
import uuid

from bed import BED, ROOT, RUN, claim, condition_is, get, kubectl, main, restart, run, say, step, wait
from cluster import Cassandra, Elasticsearch
from cql import QuorumClient
from es import INDEX, Client
from navigator import install
from raw import Watch

MANIFEST = ROOT / "deploy/cluster-manager.yaml"
NS, COPIES, CORE = "served", "copies", "containership-core"
OLD, NEW = "1.33.13", "1.34.4"
MACHINES = [f"hollow-{number}" for number in range(1, 6)]
HOLLOW, PENDING = "bed/hollow", "containership.io/upgrade-pending"
MARKS = ("containership.io/cordoned-by", "containership.io/tainted-by")
BOOT = "/proc/sys/kernel/random/boot_id"
CONFIG = RUN / "coordinator.kubeconfig"
GROUP = "/apis/provision.containership.io/v3/clusterupgrades"


class Hollow:
    """A kubelet of any version, under the name of its machine."""

    def __init__(self, number, name):
        self.port, self.name, self.process = 11000 + number, name, None

    def start(self, version):
        # Its folders go with the bed.
        folder = RUN / "hollow"
        folder.mkdir(exist_ok=True)
        with open(RUN / f"log/{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [BED / f"bin/kubemark-{version}", "--morph=kubelet", f"--name={self.name}", f"--kubeconfig={RUN / 'admin.kubeconfig'}",
                 f"--kubelet-port={self.port}", "--kubelet-read-only-port=0", "--use-host-image-service=false", "--max-pods=20"],
                env={**os.environ, "TMPDIR": str(folder)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def swap(self, version):
        self.stop()
        self.start(version)


class Coordinator(threading.Thread):
    """The only coordinator, as a process of this machine. Where it is to be killed, each change of a run, a machine or a Pilot ends it, and
    another one begins."""

    def __init__(self, killed):
        super().__init__(daemon=True)
        self.killed, self.count, self.process = killed, 0, None
        self.ends = threading.Event()
        paths = [GROUP, "/api/v1/nodes", "/apis/navigator.jetstack.io/v1beta1/pilots"]
        self.watches = [Watch(f"{path}?watch=true") for path in paths] if killed else []

    def begin(self):
        with open(RUN / "log/coordinator.log", "ab") as log:
            self.process = subprocess.Popen(
                [ROOT / "bin/navigator", "coordinator", "--enable-cluster-upgrade", "--leader-elect=false", "--admin-address=127.0.0.1:0",
                 f"--kubeconfig={CONFIG}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def run(self):
        seen = self.seen()
        while not self.ends.wait(0.02):
            now = self.seen()
            if now != seen:
                self.process.kill()
                self.process.wait()
                self.begin()
                self.count += 1
                seen = now

    def seen(self):
        return sum(len(watch.events) for watch in self.watches)

    def __enter__(self):
        self.begin()
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join(timeout=60)
        for watch in self.watches:
            watch.stop()
        self.process.kill()
        self.process.wait()


def install_coordinator():
    """All that the manifest holds but the pods, in whose place a process has their rights, and no more."""
    documents = MANIFEST.read_text().split("\n---\n")
    without = [document for document in documents if "\nkind: Deployment\n" not in f"\n{document}"]
    claim("the manifest has one Deployment", len(documents) - len(without) == 1, len(documents))
    kubectl("apply", "--server-side", "-f", "-", stdin="\n---\n".join(without))
    kubectl("wait", "--for=condition=Established", "crd/clusterupgrades.provision.containership.io", "--timeout=60s")
    token = kubectl("create", "token", "navigator-coordinator", "-n", CORE, "--duration=3h").strip()
    CONFIG.write_text((RUN / "admin.kubeconfig").read_text())
    CONFIG.chmod(0o600)
    kubectl("config", f"--kubeconfig={CONFIG}", "set-credentials", "coordinator", f"--token={token}")
    kubectl("config", f"--kubeconfig={CONFIG}", "set-context", "--current", "--user=coordinator")
    who = kubectl("auth", "whoami", f"--kubeconfig={CONFIG}", "-o", "jsonpath={.status.userInfo.username}")
    claim("it is the coordinator's account", who == f"system:serviceaccount:{CORE}:navigator-coordinator", who)


def ask_for(name, **spec):
    kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade", "metadata": {"name": name, "namespace": CORE}, "spec": spec}))


def upgrade(name):
    return get("clusterupgrade", "-n", CORE, name) or {}


def of_label(key, operator, *values):
    return [{"label": key, "operator": operator, **({"value": list(values)} if values else {})}]


def awaited(thing):
    """Machines that the status waits for until they are changed."""
    return {entry["machine"] for entry in thing.get("status", {}).get("waitsFor", []) if entry["predicate"] == "MachineChanged"}


def until_over(name, change, deadline):
    """Changes each machine once when it is waited for; returns the run at its end, and the order."""
    changed = []

    def check():
        thing = upgrade(name)
        for machine in sorted(awaited(thing) - set(changed)):
            say(f"    {machine} is changed")
            change(machine)
            changed.append(machine)
        status = thing.get("status", {})
        if "completionTime" in status and not thing["metadata"].get("finalizers"):
            return [thing]
        return f"{status.get('phase')} {status.get('progress')}: {status.get('waitsForText')}"
    return wait(f"the end of {name}", check, deadline)[0], changed


def is_clean(machines):
    for machine in machines:
        node = get("node", machine)
        marks = [mark for mark in MARKS if mark in node["metadata"].get("annotations", {})]
        taints = [taint["key"] for taint in node["spec"].get("taints", []) if taint["key"] == PENDING]
        claim(f"{machine} bears no mark", not marks and not taints and not node["spec"].get("unschedulable"), (marks, node["spec"]))


class Cordons:
    """Which machines were cordoned at each moment."""

    def __init__(self):
        version = json.loads(kubectl("get", "--raw", "/api/v1/nodes"))["metadata"]["resourceVersion"]
        self.watch = Watch(f"/api/v1/nodes?watch=true&resourceVersion={version}")

    def most(self):
        self.watch.stop()
        now, most = set(), set()
        for event in self.watch.events:
            node = event["object"]
            (now.add if node["spec"].get("unschedulable") else now.discard)(node["metadata"]["name"])
            most = max(most, set(now), key=len)
        return most


def run_hollow(hollow):
    """They run five copies of something, two of which may be away."""
    # A kubelet that must register first, on a busy machine, may give its CSINode up before.
    kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {HOLLOW: "yes", "kubernetes.io/hostname": name}},
         "spec": {"taints": [{"key": HOLLOW, "value": "yes", "effect": "NoSchedule"}]}} for name in MACHINES]}))
    for one in hollow:
        one.start(OLD)
    for name in MACHINES:
        wait(f"{name} is Ready", condition_is("Ready", "True", "node", name))
    labels = {"app": "web"}
    pod = {"nodeSelector": {HOLLOW: "yes"}, "tolerations": [{"key": HOLLOW, "operator": "Exists"}], "containers": [{"name": "web", "image": "web"}]}
    kubectl("apply", "-n", COPIES, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 5, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": {
            "minAvailable": 3, "selector": {"matchLabels": labels}}}]}))
    wait("five copies", condition_is("Available", "True", "deployment", "-n", COPIES, "web"))


def upgraded(hollow):
    """While two databases on another machine serve."""
    by_name = {one.name: one for one in hollow}
    cordons = Cordons()
    with Coordinator(killed=True) as coordinator:
        ask_for("minor", targetVersion=f"v{NEW}", maxUnavailable=2, labelSelector=of_label(HOLLOW, "exists"))
        ended, order = until_over("minor", lambda name: by_name[name].swap(NEW), 900)
    say(f"    the coordinator was killed {coordinator.count} times; {order}")
    status = ended["status"]
    claim("it succeeded", status["phase"] == "Success" and status["progress"] == "5/5", json.dumps(status))
    claim("the coordinator was killed often", coordinator.count > 40, coordinator.count)
    versions = {name: get("node", name)["status"]["nodeInfo"]["kubeletVersion"] for name in MACHINES}
    claim("each machine runs the newer kubelet", set(versions.values()) == {f"v{NEW}"}, versions)
    is_clean(MACHINES)
    most = cordons.most()
    claim("two machines were cordoned at once, and never more", len(most) == 2, most)
    wait("five copies", condition_is("Available", "True", "deployment", "-n", COPIES, "web"))


def rebooted(real):
    """The machine of the databases: its pods leave in order, and come back to their volumes."""
    def boot(_):
        pods = [pod for pod in get("pods", "-A") if pod["spec"].get("nodeName") == real]
        claim("no pod is on it", not pods, [pod["metadata"]["name"] for pod in pods])
        (RUN / "boot_id").write_text(f"{uuid.uuid4()}\n")
        run("mount", "--bind", RUN / "boot_id", BOOT)
        restart("kubelet")
    with Coordinator(killed=False):
        ask_for("reboot", type="reboot", drain={"deleteEmptyDirData": True}, labelSelector=of_label(HOLLOW, "!"))
        ended, _ = until_over("reboot", boot, 900)
    claim("it succeeded", ended["status"]["phase"] == "Success", json.dumps(ended["status"]))
    is_clean([real])


def job():
    with step("install"):
        install()
        for namespace in (COPIES, NS):
            kubectl("create", "namespace", namespace)
        install_coordinator()
    real = get("nodes")[0]["metadata"]["name"]
    ring, index = Cassandra(NS), Elasticsearch(NS)
    with step("a Cassandra and an Elasticsearch of one node each"):
        ring.apply()
        # Of several on the bed's one machine, the second could never leave: a copy of its data would be nowhere.
        index.apply(index.manifest(1))
        ring.ready()
        index.ready()
        ring.write(100)
        index.ignore_disk()
        index.client().make_index(2)
    hollow = [Hollow(number, name) for number, name in enumerate(MACHINES)]
    try:
        with step("five hollow machines"):
            run_hollow(hollow)
        with step(f"they go from {OLD} to {NEW}, and the databases serve"):
            before = ring.uids("pods")
            with QuorumClient(ring.addresses(), 100) as rows, Client(index.addresses(), INDEX) as documents:
                upgraded(hollow)
            for client in (rows, documents):
                say(f"    {client.figures()}")
                claim("no request failed", client.done > 100 and not client.failed, client.failed[:5])
            claim("it was never seen but green", not set(documents.seen) & {"yellow", "red"} and documents.seen["green"] > 50, documents.seen)
            claim("their pods are the same", before == ring.uids("pods"), before)
        with step("the databases' machine is rebooted"):
            rebooted(real)
            ring.ready()
            index.ready()
            claim("other pods serve now", len(before) == 2 and not set(before) & set(ring.uids("pods")), before)
            for client in (rows, documents):
                missing = client.missing()
                claim("all that was acknowledged is there", not missing, missing[:10])
    finally:
        for one in hollow:
            one.stop()
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
