"""A small Kubernetes of processes alone: etcd, kube-apiserver, kube-controller-manager, and our API server or CRDs.

`python3 world.py ours|twin FOLDER WORK [ARG ...]` runs `WORK.work(world, ARG ...)` in it. It belongs into namespaces of its own, of network
and of processes (run.py): then its addresses are the same each time, and nothing of it outlives its first process.
"""
import contextlib
import http.client
import importlib
import json
import os
import resource
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import definitions

ROOT = definitions.ROOT
BIN = Path(os.environ["NAVIGATOR_TESTBED"]) / "bin"
# Lies on the loopback interface; as an address of Endpoints it may be none of 127.0.0.0/8.
ADDRESS = "10.250.0.1"
URL = f"https://{ADDRESS}:6443"
BEGUN = time.monotonic()
PATIENCE = 300
CONTROLLERS = "garbage-collector-controller,namespace-controller,clusterrole-aggregation-controller,serviceaccount-controller"
SLICE = {
    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
    "metadata": {"name": "navigator-apiserver", "namespace": "navigator", "labels": {"kubernetes.io/service-name": "navigator-apiserver"}},
    "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}], "ports": [{"name": "https", "port": 8443}],
}
# What a client does is judged by this trail.
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}


class Failed(Exception):
    """The world did not come up, or ended."""


def until(what, look, patience=PATIENCE):
    """Waits for a look that is true; what was last seen is told at the deadline."""
    ends, seen = time.monotonic() + patience, None
    while time.monotonic() < ends:
        try:
            seen = look()
            if seen is True:
                return
        except (OSError, KeyError, IndexError) as error:
            seen = f"{type(error).__name__}: {error}"
        time.sleep(0.05)
    raise Failed(f"not within {patience} s: {what}; last seen: {seen}")


def seconds(used):
    return used.ru_utime + used.ru_stime


class World:
    """The processes of one world; all end with the first process of its namespace."""

    def __init__(self, name, folder):
        self.name, self.folder, self.running = name, folder, {}
        # The user of kubectl and ask(): one of system:masters, until `kate` has her rights.
        self.user = "admin"
        self.pki = folder / "pki"
        self.pki.mkdir(parents=True)

    def say(self, text):
        print(f"[{time.monotonic() - BEGUN:6.1f} s] {self.name}: {text}", flush=True)

    def begin(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def runs(self, name, condition):
        """For until(): the condition, as long as this process lives."""
        def look():
            if self.running[name].poll() is not None:
                tail = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
                raise Failed("\n".join([f"{name} ended with {self.running[name].returncode}", *tail]))
            return condition()
        return look

    def openssl(self, *words):
        done = subprocess.run(["openssl", *words], cwd=self.pki, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"openssl {' '.join(words)}: {done.stderr}")

    def authority(self, name):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                     "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt")

    def issue(self, name, subject, authority="ca", names=None):
        (self.pki / f"{name}.ext").write_text(f"subjectAltName={names or 'DNS:' + name}\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", subject,
                     "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt", "-CAkey", f"{authority}.key",
                     "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt")

    def kubeconfig(self, name, namespace="default", user=None, **credentials):
        """Writes a kubeconfig of a user with a certificate, or with what is given."""
        user = user or name
        credentials = credentials or {"client-certificate": f"{self.pki}/{user}.crt", "client-key": f"{self.pki}/{user}.key"}
        file = self.folder / f"{name}.kubeconfig"
        file.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "world",
            "clusters": [{"name": "world", "cluster": {"server": URL, "certificate-authority": f"{self.pki}/ca.crt"}}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "world", "context": {"cluster": "world", "user": user, "namespace": namespace}}]}))
        return file

    def kubectl(self, *args, stdin=None):
        """Runs kubectl for what has to be there."""
        done = subprocess.run([BIN / "kubectl", f"--kubeconfig={self.folder}/{self.user}.kubeconfig", *args],
                              input=stdin, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"kubectl {' '.join(map(str, args))}: {done.stdout}{done.stderr}")
        return done.stdout

    def ask(self, path, method="GET", body=None, accept="application/json"):
        """A request, and its answer, parsed."""
        context = ssl.create_default_context(cafile=self.pki / "ca.crt")
        context.load_cert_chain(self.pki / f"{self.user}.crt", self.pki / f"{self.user}.key")
        body = body and json.dumps(body).encode()
        asked = urllib.request.Request(URL + path, body, {"Content-Type": "application/json", "Accept": accept}, method=method)
        with urllib.request.urlopen(asked, timeout=10, context=context) as answer:
            text = answer.read().decode()
            return json.loads(text) if text.startswith("{") else text

    def send(self, method, path, body=None, headers=None):
        """A request as it is written: the answer's status, warnings and text."""
        context = ssl.create_default_context(cafile=self.pki / "ca.crt")
        context.load_cert_chain(self.pki / f"{self.user}.crt", self.pki / f"{self.user}.key")
        link = http.client.HTTPSConnection(ADDRESS, 6443, context=context, timeout=PATIENCE)
        try:
            link.request(method, path, body, headers or {})
            answer = link.getresponse()
            return answer.status, answer.headers.get_all("Warning") or [], answer.read().decode(errors="replace")
        finally:
            link.close()

    def start(self):
        for ca in ("ca", "front-proxy-ca"):
            self.authority(ca)
        self.issue("apiserver", "/CN=kube-apiserver", names=f"DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1,IP:{ADDRESS}")
        self.issue("front-proxy-client", "/CN=front-proxy-client", "front-proxy-ca")
        self.issue("admin", "/O=system:masters/CN=admin")
        self.issue("controller-manager", "/CN=system:kube-controller-manager")
        self.issue("kate", "/O=parity/CN=kate")
        self.openssl("genrsa", "-out", "sa.key", "2048")
        self.openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        for user in ("admin", "controller-manager", "kate"):
            self.kubeconfig(user)
        self.control_plane()
        self.kubectl("create", "clusterrolebinding", "kate", "--clusterrole=cluster-admin", "--group=parity")
        self.user = "kate"
        until("kate's rights", lambda: self.ask("/api/v1/nodes")["items"] == [])
        if self.name == "ours":
            self.install()
        else:
            self.define()
        until("our kinds in discovery", self.discovered)
        # Started after our kinds are served, because the garbage collector looks for new kinds only twice a minute.
        config = self.folder / "controller-manager.kubeconfig"
        self.begin("kube-controller-manager", BIN / "kube-controller-manager", f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
                   f"--authorization-kubeconfig={config}", f"--service-account-private-key-file={self.pki}/sa.key", f"--root-ca-file={self.pki}/ca.crt",
                   "--use-service-account-credentials", "--leader-elect=false", f"--controllers={CONTROLLERS}")
        self.say("is up")

    def control_plane(self):
        pki, client, peer = self.pki, "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self.begin("etcd", BIN / "etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync", "--log-level=error",
                   "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                   "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}")
        (self.folder / "policy.json").write_text(json.dumps(POLICY))
        self.begin(
            "kube-apiserver", BIN / "kube-apiserver", f"--etcd-servers={client}", "--service-cluster-ip-range=10.96.0.0/16",
            f"--advertise-address={ADDRESS}", f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt", f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy-client.crt", f"--proxy-client-key-file={pki}/front-proxy-client.key",
            "--enable-aggregator-routing=true", "--authorization-mode=RBAC",
            f"--audit-policy-file={self.folder}/policy.json", f"--audit-log-path={self.folder}/audit.log")
        until("kube-apiserver", self.runs("kube-apiserver", lambda: self.ask("/readyz") == "ok"))

    def install(self):
        """Ours as it is installed, but that its process is no pod's."""
        self.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/navigator.yaml"))
        self.kubectl("apply", "-f", "-", stdin=json.dumps(SLICE))
        self.begin_ours()
        for version in ("v1beta1", "v1alpha1"):
            until(f"ours in {version}", self.runs("navigator", lambda: self.available(version)))

    def restart_ours(self):
        """Ends our server as a node does, and starts another on its store."""
        self.running["navigator"].terminate()
        self.running["navigator"].wait(timeout=PATIENCE)
        self.begin_ours()
        path = f"/apis/{definitions.GROUP}/v1beta1/leaderleases"
        until("ours again", self.runs("navigator", lambda: self.ask(path)["kind"] == "LeaderLeaseList"))

    def begin_ours(self):
        path = "/api/v1/namespaces/navigator/serviceaccounts/navigator-apiserver/token"
        token = self.ask(path, "POST", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}})
        config = self.kubeconfig("navigator", "navigator", token=token["status"]["token"])
        self.begin("navigator", os.environ["NAVIGATOR"], "apiserver", f"--kubeconfig={config}", "--namespace=navigator", "--secure-port=8443",
                   "--store=embedded", f"--store-path={self.folder}/store",
                   f"--audit-policy-file={self.folder}/policy.json", f"--audit-log-path={self.folder}/navigator-audit.log")

    def available(self, version):
        conditions = self.ask(f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{definitions.GROUP}")["status"]["conditions"]
        return any((one["type"], one["status"]) == ("Available", "True") for one in conditions) or conditions

    def define(self):
        crds = {"apiVersion": "v1", "kind": "List", "items": definitions.definitions()}
        self.kubectl("create", "-f", "-", stdin=json.dumps(crds))
        for kind in definitions.KINDS:
            for version in kind[4]:
                until(f"{kind[0]} in {version}", lambda: self.ask(f"/apis/{definitions.GROUP}/{version}/{kind[1]}")["items"] == [])

    def discovered(self):
        """Does kube-apiserver tell of all kinds? It does some time after it serves them."""
        groups = self.ask("/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")["items"]
        told = {(version["version"], one["resource"]) for group in groups if group["metadata"]["name"] == definitions.GROUP
                for version in group["versions"] for one in version["resources"]}
        return told == {(version, kind[1]) for kind in definitions.KINDS for version in kind[4]} or told

    def end(self):
        """Ends all, and tells what it cost, in processor seconds."""
        used = {"kubectl and others": seconds(resource.getrusage(resource.RUSAGE_CHILDREN)), "this": seconds(resource.getrusage(resource.RUSAGE_SELF))}
        for process in self.running.values():
            process.kill()
        for name, process in self.running.items():
            with contextlib.suppress(ChildProcessError):
                used[name] = used.get(name, 0) + seconds(os.wait4(process.pid, 0)[2])
        self.say("processor seconds: " + ", ".join(f"{name} {number:.0f}" for name, number in used.items()))


def main():
    name, folder, work, *args = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    world = World(name, Path(folder).resolve())
    try:
        world.start()
        importlib.import_module(work).work(world, *args)
    except Failed as error:
        world.say(f"FAILED: {error}")
        sys.exit(1)
    finally:
        world.end()


if __name__ == "__main__":
    main()
