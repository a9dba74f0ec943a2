"""The bed's real machine upgrades itself: a real kubelet and a real kubeadm, an agent, a coordinator, and a runner that is killed at each step.

First kubeadm writes a configuration with which the new kubelet does not start: the old one comes back with its own. Then the way is free. What
systemd would do is done by this job: it starts the runner when `current` is written, and again when the runner was killed or asks for it.

Not part of CI: `make e2e-runner`.
"""
import hashlib
import http.server
import json
import os
import ssl
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

from bed import BED, ROOT, RUN, claim, condition_is, get, kubectl, main, run, say, step, wait

OLD, NEW, CORE = "v1.33.13", "v1.34.4", "containership-core"
MACHINE = RUN / "machine"
JOBS, STATE, CONFIG = MACHINE / "jobs", MACHINE / "state", Path("/var/lib/kubelet/config.yaml")
NAVIGATOR = ROOT / "bin/navigator"

RESTART = f"""#!/bin/sh
exec 9>{MACHINE}/restart.lock && flock 9
old=$(cat {RUN}/pid/kubelet)
kill -9 "$old"
for try in $(seq 20); do kill -0 "$old" 2>/dev/null || break; sleep 0.1; done
setsid {MACHINE}/bin/kubelet ARGUMENTS >>{RUN}/log/kubelet.log 2>&1 </dev/null 9>&- &
echo $! >{RUN}/pid/kubelet
"""


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Unit(threading.Thread):
    """The units of systemd. Where the runner is to be killed, that is done once at each step."""

    def __init__(self, killed):
        super().__init__(daemon=True)
        self.killed, self.steps, self.ends, self.seen = killed, [], threading.Event(), self.changed()

    def changed(self):
        try:
            return (JOBS / "current").stat().st_ino
        except OSError:
            return None

    def step(self):
        try:
            journal = json.loads((STATE / "state.json").read_text())
            return journal["step"] if journal["code"] in (None, 10) else None
        except (OSError, ValueError):
            return None

    def run(self):
        while not self.ends.wait(0.2):
            if self.changed() == self.seen:
                continue
            self.seen, code = self.changed(), None
            while code not in (0, 20, 30, 64):
                code = self.runner()
                time.sleep(0.2)
            say(f"    the runner ends with {code}")

    def runner(self):
        with open(RUN / "log/runner.log", "ab") as log:
            runner = subprocess.Popen(
                [NAVIGATOR, "agent", "run-job", JOBS, f"--policy={MACHINE / 'policy.json'}", f"--state={STATE}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while runner.poll() is None:
            now = self.step()
            if self.killed and now and now not in self.steps:
                runner.kill()
                self.steps.append(now)
            time.sleep(0.005)
        return runner.returncode

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join(timeout=60)


class Role:
    """A role of ours as a process of this machine."""

    def __init__(self, *words):
        self.words = words

    def __enter__(self):
        with open(RUN / f"log/{self.words[0]}.log", "ab") as log:
            self.process = subprocess.Popen(
                [NAVIGATOR, *self.words, f"--kubeconfig={RUN / 'admin.kubeconfig'}", "--admin-address=127.0.0.1:0"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def serve_programs():
    """By HTTPS, with a certificate of the bed's."""
    web = MACHINE / "web"
    web.mkdir()
    (web / "kubelet").symlink_to(BED / "bin/kubelet")
    (web / "kubeadm").symlink_to(BED / f"bin/kubeadm-{NEW[1:]}")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=web))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(RUN / "pki/apiserver.crt", RUN / "pki/apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"https://127.0.0.1:{server.server_port}"


def configure(more):
    """What kubeadm gives the kubelets of this cluster."""
    config = (RUN / "kubelet.yaml").read_text() + more
    cluster = f"apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {NEW}\n"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    meta = {"namespace": "kube-system"}
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubelet-config", **meta}, "data": {"kubelet": config}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubeadm-config", **meta}, "data": {"ClusterConfiguration": cluster}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "kubeadm:nodes", **meta}, "rules": [rule]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "kubeadm:nodes", **meta},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kubeadm:nodes"},
         "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}]}]}))


def lay_machine(url, node):
    """A machine as kubeadm leaves it, with the older kubelet."""
    for folder in ("bin", "jobs", "home", "kubernetes"):
        (MACHINE / folder).mkdir()
    (MACHINE / "bin/kubelet").write_bytes((BED / f"bin/kubelet-{OLD[1:]}").read_bytes())
    (MACHINE / "bin/kubelet").chmod(0o755)
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text((RUN / "kubelet.yaml").read_text())
    (CONFIG.parent / "kubeadm-flags.env").write_text(
        f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix://{RUN / "containerd.sock"}"\n')
    Path("/etc/kubernetes").mkdir(exist_ok=True)
    run("mount", "--bind", MACHINE / "kubernetes", "/etc/kubernetes")
    Path("/etc/kubernetes/kubelet.conf").write_text((RUN / "kubelet.kubeconfig").read_text())
    kubectl("annotate", "node", node, f"kubeadm.alpha.kubernetes.io/cri-socket=unix://{RUN / 'containerd.sock'}")
    words = (Path("/proc") / (RUN / "pid/kubelet").read_text().strip() / "cmdline").read_text().split("\0")[1:-1]
    words = [f"--config={CONFIG}" if word.startswith("--config=") else word for word in words]
    (MACHINE / "restart").write_text(RESTART.replace("ARGUMENTS", " ".join(words)))
    (MACHINE / "restart").chmod(0o755)
    (MACHINE / "jobs/host.json").write_text('{"form":1}')
    (MACHINE / "policy.json").write_text(json.dumps({
        "enabled": True, "baseURLs": [url], "lowestVersion": "v1.33.0", "highestVersion": "v1.34.99", "caFile": str(RUN / "pki/ca.crt"),
        "kubelet": str(MACHINE / "bin/kubelet"), "restart": [[str(MACHINE / "restart")]], "healthSeconds": 40, "stableSeconds": 5}))
    run(MACHINE / "restart")


def says(node, version):
    def check():
        seen = get("node", node)["status"]["nodeInfo"]["kubeletVersion"]
        return seen == version or seen
    wait(f"kubelet {version}", check)
    wait("the machine is Ready", condition_is("Ready", "True", "node", node))


def upgraded(name, url):
    """Asks for an upgrade, and returns its status at the end."""
    digests = {program: digest(MACHINE / "web" / program) for program in ("kubelet", "kubeadm")}
    kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade", "metadata": {"name": name, "namespace": CORE},
        "spec": {"targetVersion": NEW, "drain": {"mode": "Never"}, "runner": {
            "mode": "Kubeadm", "artifacts": {"baseURL": url, "sha256": digests}}}}))

    def check():
        status = (get("clusterupgrade", "-n", CORE, name) or {}).get("status", {})
        return [status] if "completionTime" in status else f"{status.get('phase')}: {status.get('waitsForText')} {status.get('message')}"
    return wait(f"the end of {name}", check, 400)[0]


def is_whole(version, config):
    """The kubelet and its configuration are of this one version."""
    source = BED / ("bin/kubelet" if version == NEW else f"bin/kubelet-{version[1:]}")
    claim(f"the installed kubelet is that of {version}", digest(MACHINE / "bin/kubelet") == digest(source))
    claim("its configuration belongs to it", CONFIG.read_bytes() == config)
    pid = (RUN / "pid/kubelet").read_text().strip()
    claim("it runs", os.path.samefile(f"/proc/{pid}/exe", MACHINE / "bin/kubelet"))


def job():
    kubectl("create", "namespace", CORE)
    kubectl("apply", "--server-side", "-f", ROOT / "tests/golden/api/containership")
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    node = get("nodes")[0]["metadata"]["name"]
    MACHINE.mkdir()
    url = serve_programs()
    with step(f"the machine runs kubelet {OLD}"):
        lay_machine(url, node)
        says(node, OLD)
    before = CONFIG.read_bytes()
    agent = ("agent", f"--node-name={node}", f"--keys-folder={MACHINE / 'home'}", f"--upgrade-folder={JOBS}")
    with Role("coordinator", "--enable-cluster-upgrade", "--leader-elect=false"), Role(*agent):
        def spoke():
            return "containership.io/upgrade" in get("node", node)["metadata"]["annotations"]
        wait("the agent's word", spoke)
        with step("kubeadm writes what the new kubelet does not start with, and the old one comes back"), Unit(killed=True) as unit:
            configure("maxOpenFiles: -1\n")
            status = upgraded("broken", url)
            say(f"    killed at {unit.steps}")
            message = status["nodes"][0]["message"]
            claim("the run says so", status["phase"] == "Failed" and message.startswith(f"rolled back to {OLD}: the kubelet was not well"), message)
            claim("the runner was killed at the way back, too", "rollback" in unit.steps, unit.steps)
            is_whole(OLD, before)
            says(node, OLD)
        with step(f"the machine goes to {NEW}"), Unit(killed=True) as unit:
            configure("maxPods: 100\n")
            status = upgraded("whole", url)
            say(f"    killed at {unit.steps}")
            claim("the run succeeds", status["phase"] == "Success" and status["progress"] == "1/1", status)
            claim("the runner was killed at each step", set(unit.steps) >= {"fetch", "stage", "kubeadm", "restart", "health"}, unit.steps)
            is_whole(NEW, CONFIG.read_bytes())
            claim("kubeadm wrote the configuration", b"maxPods: 100" in CONFIG.read_bytes(), CONFIG.read_text())
            claim("the old kubelet is kept", digest(MACHINE / "bin/kubelet.prev") == digest(BED / f"bin/kubelet-{OLD[1:]}"))
            says(node, NEW)
    told = [event["note"] for event in get("events.events.k8s.io", "-A") if event.get("reason") == "NodeUpgradeRunner"]
    claim("the failure is an event on the Node", any("was not well" in note for note in told), told)


if __name__ == "__main__":
    main(job)
