#!/usr/bin/env python3
"""run.py NAVIGATOR [PEERS]: what the cluster manager costs while nothing happens: a coordinator, and the agent of one machine; and beside them
peers' programs.

A small Kubernetes (tests/parity/world.py: etcd and kube-apiserver) in namespaces of its own has MACHINES (50) Nodes, one finished ClusterUpgrade, 20
Users, 5 ClusterLabels and 2 Registries for 20 namespaces. SETTLES (60) seconds after all run they are measured for SECONDS (600): requests by
kube-apiserver's audit log, where a watch counts when it begins; processor time; private memory. PEERS is a folder with the programs
`system-upgrade-controller` and `kured`, or one of them. Prints Markdown.
"""
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/parity"))
import world  # noqa: E402

MACHINES = int(os.environ.get("MACHINES", "50"))
SECONDS = int(os.environ.get("SECONDS", "600"))
SETTLES = int(os.environ.get("SETTLES", "60"))
CORE = "containership-core"
TICK = os.sysconf("SC_CLK_TCK")
SECRETS = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def listed(objects):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


class Bed(world.World):
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
        self.say("is up")

    def account(self, namespace, name, bound=None):
        """A token of this account, as a pod has one."""
        spec = {"expirationSeconds": 7200, **({"boundObjectRef": bound} if bound else {})}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.ask(path, "POST", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        return token["status"]["token"]

    def fill(self, navigator):
        """Machines, and what people ask of them."""
        manifest = subprocess.run([navigator, "manifest", "--cluster-manager", "--agents", "--registries", "--enable-cluster-upgrade"],
                                  check=True, capture_output=True, text=True).stdout
        self.kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"m{number:02}", "labels": {"kubernetes.io/os": "linux"}},
                  "spec": {}, "status": {"nodeInfo": {}}} for number in range(MACHINES)]
        for node in nodes:
            del node["status"]
        namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}", "labels": {"pulls": "yes"}}} for number in range(20)]
        self.kubectl("create", "-f", "-", stdin=listed(nodes + namespaces))
        group = {"apiVersion": "containership.io/v3", "metadata": {"namespace": CORE}}

        def key(number):
            return base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([number]) * 32).decode()
        objects = [{**group, "kind": "User", "metadata": {"namespace": CORE, "name": f"user-{number}"},
                    "spec": {"name": f"User {number}", "ssh_keys": [{"name": "laptop", "key": f"ssh-ed25519 {key(number)}"}]}} for number in range(20)]
        objects += [{**group, "kind": "ClusterLabel", "metadata": {"namespace": CORE, "name": f"label-{number}"},
                     "spec": {"key": f"cluster.containership.io/l{number}", "value": "yes"}} for number in range(5)]
        objects += [{**group, "kind": "Registry", "metadata": {"namespace": CORE, "name": f"registry-{number}"}, "spec": {
            "serveraddress": f"r{number}.example.org", "provider": "private", "namespaceSelector": {"matchLabels": {"pulls": "yes"}},
            "credentials": {"username": "u", "password": "p"}}} for number in range(2)]
        self.kubectl("create", "-f", "-", stdin=listed(objects))


def spent(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def private(pid):
    return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def requests(log, users, begun, ended):
    """Requests by user within a time."""
    counts = {user: Counter() for user in users}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        user = event["user"]["username"]
        at = datetime.fromisoformat(event["requestReceivedTimestamp"].replace("Z", "+00:00"))
        if user in counts and event["stage"] in ("ResponseComplete", "Panic") and begun <= at <= ended:
            counts[user][f"{event['verb']} {event.get('objectRef', {}).get('resource', event['requestURI'])}"] += 1
    return counts


def inside(folder, navigator, peers):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{world.ADDRESS}/32", "dev", "lo"], check=True)
    bed = Bed("machines", folder)
    try:
        bed.start()
        bed.fill(navigator)
        users = {}
        config = bed.kubeconfig("coordinator", CORE, token=bed.account(CORE, "navigator-coordinator"))
        bed.begin("coordinator", navigator, "coordinator", f"--kubeconfig={config}", "--enable-cluster-upgrade", "--registries",
                  f"--core-namespace={CORE}", "--admin-address=127.0.0.1:9201")
        users["coordinator"] = f"system:serviceaccount:{CORE}:navigator-coordinator"
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent-0", "namespace": CORE}, "spec": {
            "nodeName": "m00", "serviceAccountName": "navigator-agent", "containers": [{"name": "agent", "image": "agent"}]}}
        bed.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        uid = bed.ask(f"/api/v1/namespaces/{CORE}/pods/agent-0")["metadata"]["uid"]
        config = bed.kubeconfig("agent", CORE, token=bed.account(CORE, "navigator-agent", {"apiVersion": "v1", "kind": "Pod", "name": "agent-0", "uid": uid}))
        keys = folder / "keys"
        keys.mkdir()
        bed.begin("agent", navigator, "agent", "--node-name=m00", f"--kubeconfig={config}", f"--core-namespace={CORE}", f"--keys-folder={keys}",
                  "--admin-address=127.0.0.1:9202")
        users["agent"] = f"system:serviceaccount:{CORE}:navigator-agent"
        for peer in ("system-upgrade-controller", "kured"):
            if peers and (peers / peer).exists():
                users[peer] = begin_peer(bed, peer, peers / peer)
        time.sleep(SETTLES)
        report(bed, users)
    except (world.Failed, OSError) as error:
        bed.say(f"FAILED: {error}")
        sys.exit(1)
    finally:
        bed.end()


def begin_peer(bed, peer, program):
    """As its own manifest starts it, with all rights."""
    namespace = "kube-system" if peer == "kured" else "system-upgrade"
    if namespace == "system-upgrade":
        bed.kubectl("create", "namespace", namespace)
    bed.kubectl("create", "serviceaccount", peer, "-n", namespace)
    bed.kubectl("create", "clusterrolebinding", peer, "--clusterrole=cluster-admin", f"--serviceaccount={namespace}:{peer}")
    token = bed.account(namespace, peer)
    if peer == "kured":
        # It finds the API as a pod does.
        SECRETS.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", SECRETS], check=True)
        (SECRETS / "token").write_text(token)
        (SECRETS / "ca.crt").write_bytes((bed.pki / "ca.crt").read_bytes())
        (SECRETS / "namespace").write_text(namespace)
        bed.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "kured", "namespace": namespace}, "spec": {
            "selector": {"matchLabels": {"name": "kured"}}, "template": {"metadata": {"labels": {"name": "kured"}}, "spec": {
                "containers": [{"name": "kured", "image": "kured"}]}}}}))
        os.environ |= {"KUBERNETES_SERVICE_HOST": world.ADDRESS, "KUBERNETES_SERVICE_PORT": "6443", "KURED_NODE_ID": "m01"}
        bed.begin(peer, program, "--metrics-port=9203", "--reboot-sentinel=/var/run/reboot-required")
    else:
        config = bed.kubeconfig(peer, namespace, token=token)
        os.environ |= {"SYSTEM_UPGRADE_CONTROLLER_NAME": peer, "SYSTEM_UPGRADE_CONTROLLER_NAMESPACE": namespace,
                       "SYSTEM_UPGRADE_CONTROLLER_NODE_NAME": "m00", "SYSTEM_UPGRADE_CONTROLLER_LEADER_ELECT": "true"}
        bed.begin(peer, program, f"--kubeconfig={config}")
    return f"system:serviceaccount:{namespace}:{peer}"


def report(bed, users):
    begun, before = datetime.now(timezone.utc), {name: spent(bed.running[name].pid) for name in users}
    time.sleep(SECONDS)
    ended, after = datetime.now(timezone.utc), {name: spent(bed.running[name].pid) for name in users}
    # The log is written behind.
    time.sleep(5)
    counts = requests(bed.folder / "audit.log", set(users.values()), begun, ended + timedelta(seconds=1))
    print(f"\n{MACHINES} machines, {SECONDS} s, {begun:%Y-%m-%d}:\n")
    print("| program | private memory, MiB | of a processor, % | requests an hour | of these |\n|---|---|---|---|---|")
    for name, user in users.items():
        bed.runs(name, lambda: True)()
        count = counts[user]
        hour = 3600 / SECONDS
        parts = ", ".join(f"{number * hour:.0f} {what}" for what, number in count.most_common(5))
        print(f"| {name} | {private(bed.running[name].pid):.0f} | {100 * (after[name] - before[name]) / SECONDS:.2f} | {sum(count.values()) * hour:.0f} | {parts} |")


def main():
    if sys.argv[1] == "--inside":
        return inside(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]) if sys.argv[4:] else None)
    programs = [str(Path(word).resolve()) for word in sys.argv[1:3]]
    with tempfile.TemporaryDirectory(prefix="navigator-machines-") as folder:
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        ended = subprocess.run(["unshare", *user, "--net", "--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc",
                                sys.executable, __file__, "--inside", folder, *programs], check=False)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
