#!/usr/bin/env python3
"""run.py NAVIGATOR [SCENARIO ...]: the life of clusters on one host without Kubernetes, by `navigator local` and kubectl.

Needs NAVIGATOR_TESTBED with bin/kubectl; fetches the databases into it. Samples are those of deploy/samples, and the kubectl
lines are those of the guides. Leaves nothing running and nothing behind, unless KEEP=1.
"""
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import cql  # noqa: E402

BED = Path(os.environ.get("NAVIGATOR_TESTBED", ROOT / ".testbed")).resolve()
SAMPLES = ROOT / "deploy/samples"
BEGUN = time.monotonic()
PATIENCE = 900


class Failed(Exception):
    """A claim that did not hold."""


def say(text):
    print(f"[{time.monotonic() - BEGUN:6.1f} s] {text}", flush=True)


def check(claim, *seen):
    if not claim:
        raise Failed(" ".join(str(one) for one in seen))


def until(what, look, patience=PATIENCE):
    """Waits for a look that is true; what was last seen is told at the deadline."""
    begun, seen = time.monotonic(), None
    while time.monotonic() - begun < patience:
        try:
            seen = look()
            if seen:
                return seen
        except (Failed, OSError, cql.Refused, ConnectionError, IndexError, KeyError) as error:
            seen = error
        time.sleep(0.5)
    raise Failed(f"not within {patience} s: {what}; last seen: {seen}")


class Local:
    """One installation, in a folder of its own."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        # Variables of the machine name no distribution: only those that a test names are run.
        self.env = {key: value for key, value in os.environ.items() if key not in ("CASSANDRA_HOME", "ES_HOME")}
        self.env |= {"NAVIGATOR_LOCAL_DIR": str(folder), "NAVIGATOR_LOCAL_ADDRESS": "127.0.0.1:0"}

    def run(self, *words, code=0, timeout=PATIENCE):
        done = subprocess.run(
            [self.program, "local", *map(str, words)], env=self.env, capture_output=True, text=True, timeout=timeout)
        check(done.returncode == code, "local", *words, f"ended with {done.returncode}:", done.stdout, done.stderr)
        return done

    def refused(self, code, part, *words):
        """It says why in one line, and nothing runs."""
        done = self.run(*words, code=code)
        lines = done.stderr.strip().splitlines()
        check(len(lines) == 1 and part in lines[0], words, "was not refused by one line with", repr(part), done.stderr)
        say(f"    {lines[0]}")

    def status(self):
        return json.loads(self.run("status", "-o", "json").stdout)

    def members(self):
        return {member["pod"]: member for cluster in self.status()["clusters"] for member in cluster["members"]}

    def cluster(self):
        return self.status()["clusters"][0]

    def kubectl(self, *words, code=0, timeout=PATIENCE):
        done = subprocess.run(
            [BED / "bin/kubectl", f"--kubeconfig={self.folder / 'kubeconfig'}", *map(str, words)],
            capture_output=True, text=True, timeout=timeout)
        check(done.returncode == code, "kubectl", *words, f"ended with {done.returncode}:", done.stdout, done.stderr)
        return done.stdout

    def plugin(self, *words, code=0):
        done = subprocess.run(
            [self.program, "plugin", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE,
            env=self.env | {"KUBECONFIG": str(self.folder / "kubeconfig"), "PATH": f"{BED / 'bin'}:{os.environ['PATH']}"})
        check(done.returncode == code, "plugin", *words, f"ended with {done.returncode}:", done.stdout, done.stderr)
        return done.stdout + done.stderr

    def ready(self, kind, name, nodes):
        until(f"{kind}/{name} is ready with {nodes} nodes", lambda: (
            (one := self.cluster())["ready"] and one["nodes"] == f"{nodes}/{nodes}" or check(False, one)))

    def address(self, pod):
        return self.members()[pod]["address"]

    def processes(self):
        """Every process of this installation: its folder is in their words or environment."""
        found, mark = [], str(self.folder).encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if (pid := int(entry.name)) != os.getpid() and (
                        mark in (entry / "cmdline").read_bytes() or mark in (entry / "environ").read_bytes()):
                    if (entry / "exe").exists():
                        found.append(pid)
        return found

    def is_down(self):
        """Nothing is left but what is about to end, as the last shell of a script."""
        def left():
            found = []
            for pid in self.processes():
                with contextlib.suppress(OSError):
                    found.append((Path(f"/proc/{pid}") / "cmdline").read_bytes().replace(b"\0", b" ")[:200])
            return found
        until("no process is left", lambda: (seen := left()) == [] or check(False, seen), 300)

    def kill_everything(self):
        """As a machine that loses its power."""
        for _ in range(900):
            if not (left := self.processes()):
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        raise Failed(f"these live on: {left}")


def home(database, version):
    folder = BED / f"{database}-{version}"
    subprocess.run([ROOT / f"tests/testbed/get-{database}.sh", version, folder], check=True, stdout=subprocess.DEVNULL)
    return folder


def sample(place, name, **changes):
    """A sample with another version, say, and open: the clients here are plain ones."""
    text = (SAMPLES / name).read_text().replace("\nspec:\n", "\nspec:\n  security: {mode: Open}\n", 1)
    for before, after in changes.values():
        check(before in text, name, "lacks", before)
        text = text.replace(before, after)
    path = place / name
    path.write_text(text)
    return path


def bad_input(local, place):
    """Each is told in one line, before anything is started."""
    file = sample(place, "cassandra-small.yaml")
    local.refused(64, "there is no Cassandra 5.0.6 on this host", "up", "-f", file)
    local.refused(64, "holds no Cassandra", "up", "--home", f"cassandra={place}", "-f", file)
    local.refused(64, "not one of", "up", "--home", f"nothing={place}")
    local.refused(64, "No such file", "up", "-f", place / "none.yaml")
    named = f"cassandra={home('cassandra', '5.0.6')}"
    broken = place / "broken.yaml"
    broken.write_text("kind: CassandraCluster\n")
    local.refused(64, "apiVersion is missing", "up", "-f", broken)
    large = sample(place, "cassandra-small.yaml", heap=("384Mi", "900Gi"), limit=("1536Mi", "999Gi"))
    local.refused(1, "MiB are free", "up", "--home", named, "-f", large)
    path, local.env["PATH"] = local.env["PATH"], "/nowhere"
    java = local.env.pop("JAVA_HOME", None)
    local.refused(64, "runs on Java, and there is none", "up", "--home", named, "-f", sample(place, "cassandra-small.yaml"))
    local.env["PATH"] = path
    if java:
        local.env["JAVA_HOME"] = java
    local.refused(1, "nothing runs here", "status")
    check(not local.processes(), "something was started")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        local.refused(1, f"{address} is in use", "up", "--address", address)


def cassandra(local, place):
    """Up, out, in with data on the leaving node, kill -9 of everything, up again, upgrade, down."""
    old, new = home("cassandra", "4.1.10"), home("cassandra", "5.0.6")
    file = sample(place, "cassandra-small.yaml", version=("5.0.6", "4.1.10"))
    say("--- up")
    local.run("up", "--home", f"cassandra={old}", "--home", f"cassandra={new}", "-f", file, "--wait")
    check("runs already" in local.run("up", "-f", file).stdout, "a second up")
    check("small" in local.kubectl("get", "cassandraclusters"), "kubectl get")
    with urllib.request.urlopen(local.status()["page"] + "status.json", timeout=10) as page:
        check(b'"small"' in page.read(), "the status page")
    say("--- kubectl navigator")
    plugin(local, place)
    first = local.address("cass-small-a-0")
    with cql.Session(first) as session:
        session.run("CREATE KEYSPACE shop WITH replication = "
                    "{'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 1}")
        session.run("CREATE TABLE shop.orders (id int PRIMARY KEY, body text)")
    say("--- scale out")
    local.kubectl("patch", "cassandracluster", "small", "--type", "json", "-p",
                  '[{"op": "replace", "path": "/spec/nodePools/0/replicas", "value": 2}]')
    local.ready("cassandracluster", "small", 2)
    second = local.address("cass-small-a-1")
    check(first != second and second.startswith("127."), "addresses", first, second)
    rows = 200
    with cql.Session(first) as session:
        for row in range(rows):
            session.run(f"INSERT INTO shop.orders (id, body) VALUES ({row}, 'order {row}')")
        # Each row has one copy, and the node that leaves must hold some of them.
        tokens = [int(row[0]) for row in session.run("SELECT token(id) FROM shop.orders")]
    check(len(tokens) == rows, "rows written", len(tokens))
    load = json.loads(local.kubectl("get", "pilot", "cass-small-a-1", "-o", "json"))["status"]
    check(load["identity"], "the second node is a member", load)
    say("--- scale in")
    local.kubectl("patch", "cassandracluster", "small", "--type", "json", "-p",
                  '[{"op": "replace", "path": "/spec/nodePools/0/replicas", "value": 1}]')
    until("it says what the first node owes", lambda: "CleanupPending" in local.plugin("status", "small", code=3))
    local.plugin("cleanup", "small")
    until("the pod is gone", lambda: "cass-small-a-1" not in local.kubectl("get", "pods"))
    local.ready("cassandracluster", "small", 1)

    def read():
        with cql.Session(local.address("cass-small-a-0")) as session:
            return sorted(session.run("SELECT id, body FROM shop.orders"))
    wanted = sorted([row, f"order {row}"] for row in range(rows))
    check(read() == wanted, "rows after the scale-in", len(read()))
    say("--- kill -9 of the one process behind it")
    pid, before = local.status()["pid"], local.members()["cass-small-a-0"]["pid"]
    os.kill(pid, signal.SIGKILL)
    check(read_from(first) == wanted, "the database goes on alone")
    local.refused(1, "no daemon looks after them", "status")
    local.run("up", "--wait")
    check(local.members()["cass-small-a-0"]["pid"] == before, "the pilot was adopted, not started again")
    say("--- kill -9 of everything")
    local.kill_everything()
    local.run("up", "--wait")
    until("the node is back", lambda: local.members()["cass-small-a-0"]["ready"])
    check(read() == wanted, "rows after the crash")
    say("--- upgrade")
    local.kubectl("patch", "cassandracluster", "small", "--type", "merge", "-p", '{"spec": {"version": "5.0.6"}}')
    until("the new version runs", lambda: (
        (one := local.cluster())["ready"] and one["version"].startswith("5.0.6") or check(False, one)))
    check(read() == wanted, "rows after the upgrade")
    check(json.loads(local.kubectl("get", "pod", "cass-small-a-0", "-o", "json"))["spec"]["containers"][0]["image"]
          .endswith(":5.0.6"), "image")
    check("CQL" in local.kubectl("logs", "cass-small-a-0", "--tail=2000"), "kubectl logs")
    check("CQL" in local.run("logs", "cass-small-a-0").stdout, "local logs")
    say("--- down")
    local.run("down")
    local.is_down()
    check(any((local.folder / "claims").iterdir()), "data stay")
    local.run("down", "--delete-data")
    check(not local.folder.exists(), "everything is deleted", *local.folder.glob("*"))


def plugin(local, place):
    """What the plugin's commands say here, of those that take no time."""
    for words, wanted in [
        (["status", "small"], "CassandraCluster default/small  Ready"),
        (["logs", "small", "--pretty", "--tail", "500"], "INFO"),
        (["predicates", "small"], "every node may stop now"),
        (["upgrade", "small", "5.0.6", "--check"], "The server accepts 5.0.6"),
        (["pause", "small"], "small"),
        (["resume", "small"], "small"),
        (["install", "check"], "serves Navigator's kinds by itself"),
        (["report", "small", "--output", place / "report.tar.gz"], "report.tar.gz"),
    ]:
        check(wanted in (said := local.plugin(*words)), words, "says", said)
    with tarfile.open(place / "report.tar.gz") as report:
        names = [name.split("/", 1)[1] for name in report.getnames()]
    check("logs/cass-small-a-0.log" in names, "the report holds", names)
    # For `shell`, the plugin's process becomes kubectl, whose answer is seen.
    check("there is no exec on a host without containers" in local.plugin("shell", "small", code=1), "shell")
    check("there is no port-forward" in refused_by_kubectl(local, "port-forward", "pod/cass-small-a-0", "9042"), "port-forward")
    scaled = local.kubectl("scale", "statefulset", "cass-small-a", "--replicas", "1")
    check("scaled" in scaled, "kubectl scale", scaled)


def refused_by_kubectl(local, *words):
    done = subprocess.run(
        [BED / "bin/kubectl", f"--kubeconfig={local.folder / 'kubeconfig'}", *words], capture_output=True, text=True, timeout=300)
    check(done.returncode != 0 and len(done.stderr.strip().splitlines()) == 1, words, done.stdout, done.stderr)
    return done.stderr


def read_from(address):
    with cql.Session(address) as session:
        return sorted(session.run("SELECT id, body FROM shop.orders"))


def elasticsearch(local, place):
    """The same, shorter."""
    file = sample(place, "elasticsearch-small.yaml")
    say("--- up")
    local.run("up", "--home", f"elasticsearch={home('elasticsearch', '7.17.29')}", "-f", file, "--wait")

    def ask(pod, path, body=None):
        request = urllib.request.Request(
            f"http://{local.address(pod)}:9200/{path}", data=body and json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}, method="PUT" if body else "GET")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    # The test must pass on a machine with a nearly full disk, so Elasticsearch ignores its watermarks.
    ask("es-small-a-0", "_cluster/settings", {"transient": {"cluster.routing.allocation.disk.threshold_enabled": False}})
    # One shard without a second copy, on the node that is to leave: what it holds is there afterwards only if it was moved.
    leaver = "es-small-a-2"
    ask("es-small-a-0", "orders", {"settings": {"number_of_shards": 1, "number_of_replicas": 0, "index.routing.allocation.require._name": leaver}})
    ask("es-small-a-0", "orders/_doc/1?refresh=true", {"body": "a document"})
    ask("es-small-a-0", "orders/_settings", {"index.routing.allocation.require._name": None})

    def shards():
        return [(one["node"], one["docs"]) for one in ask("es-small-a-0", "_cat/shards/orders?format=json&h=node,docs")]
    check(shards() == [(leaver, "1")], "the only copy is not on the node that is to leave:", shards())
    say("--- scale in")
    local.kubectl("patch", "elasticsearchcluster", "small", "--type", "json", "-p",
                  '[{"op": "replace", "path": "/spec/nodePools/0/replicas", "value": 2}]')
    until("the pod is gone", lambda: "es-small-a-2" not in local.kubectl("get", "pods"))
    local.ready("elasticsearchcluster", "small", 2)
    check([node for node, _ in shards()] in (["es-small-a-0"], ["es-small-a-1"]), "where the shard is:", shards())
    check(ask("es-small-a-1", "orders/_doc/1")["_source"] == {"body": "a document"}, "the document")
    say("--- down")
    local.run("down", "--delete-data")
    local.is_down()


def clients(local, place):
    """A sample as it is: secure without a word about it. The program of docs/clients.md reads the Secret that it would mount, and believes no other CA
    and no other name."""
    say("--- up")
    local.run("up", "--home", f"cassandra={home('cassandra', '5.0.6')}", "-f", SAMPLES / "cassandra-small.yaml", "--wait")
    made = json.loads(local.kubectl("get", "cassandracluster", "small", "-o", "json"))
    check(made["spec"]["security"] == {"mode": "Secure"}, made["spec"])
    local.kubectl("wait", "--for=condition=Secured", "cassandracluster/small", "--timeout=300s")
    address = local.address("cass-small-a-0")
    say("--- a person, as the quick start says")
    try:
        with cql.Session(address):
            check(False, "a plain client is let in")
    except OSError as error:
        say(f"    plain: {error}")
    told = json.loads(local.plugin("get-credentials", "small", "--ca", place / "ca.crt", "-o", "json").partition("\n}")[0] + "\n}")
    with cql.Session(address, credentials=told) as session:
        session.run("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 1}")
        session.run("CREATE TABLE shop.orders (id int PRIMARY KEY, body text)")
        session.run("INSERT INTO shop.orders (id, body) VALUES (1, 'kept')")
        check(session.run("SELECT id, body FROM shop.orders") == [[1, "kept"]], "the row")
    say("--- a program, with the Secret as it is mounted")
    subprocess.run([ROOT / "tests/testbed/venv.sh", BED], check=True)
    program = re.search(r"<!-- typed: cassandra -->\n```python\n(.*?)```", (ROOT / "docs/clients.md").read_text(), re.DOTALL)[1]

    def values(name):
        data = json.loads(local.kubectl("get", "secret", name, "-o", "json"))["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def ended(**other):
        """How it ends with the Secret, and with other values of some keys in it."""
        folder = place / "bindings" / "db"
        folder.mkdir(parents=True, exist_ok=True)
        # There is no DNS of Services here.
        for key, value in (values("cass-small-admin") | {"host": address} | other).items():
            (folder / key).write_text(value)
        return subprocess.run([BED / "venv/bin/python", "-c", program], env=os.environ | {"SERVICE_BINDING_ROOT": str(folder.parent)},
                              capture_output=True, text=True, timeout=300)
    done = ended()
    check(done.stdout == "5.0.6\n", done.stdout, done.stderr)
    another = values("cass-small-internode-ca")["tls.crt"]
    with passed_on(address, 9042) as elsewhere:
        for what, other in (("another CA", {"ca.crt": another}), ("another name", {"host": elsewhere}), ("another password", {"password": "wrong"})):
            done = ended(**other)
            check(done.returncode != 0 and not done.stdout, what, done.stdout, done.stderr)
            say(f"    {what}: {done.stderr.strip().splitlines()[-1][:200]}")
    check("CERTIFICATE_VERIFY_FAILED" in ended(**{"ca.crt": another}).stderr, "the CA is what it refuses")
    say("--- down")
    local.run("down", "--delete-data")
    local.is_down()


@contextlib.contextmanager
def passed_on(address, port):
    """Another address, whose connections are handed on to this one."""
    def pump(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def take(server):
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                far = socket.create_connection((address, port))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()
    elsewhere = "127.255.0.9"
    with socket.create_server((elsewhere, port)) as server:
        threading.Thread(target=take, args=(server,), daemon=True).start()
        yield elsewhere


SCENARIOS = {"bad-input": bad_input, "cassandra": cassandra, "elasticsearch": elasticsearch, "clients": clients}


def main():
    program, names = sys.argv[1], sys.argv[2:] or list(SCENARIOS)
    # (what runs is ended then, too)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in names:
        say(f"=== {name}")
        place = Path(tempfile.mkdtemp(prefix=f"navigator-local-{name}-"))
        place.chmod(0o711)
        local = Local(program, place / "state")
        try:
            SCENARIOS[name](local, place)
        except BaseException:
            for log in [local.folder / "daemon.log", *sorted(local.folder.glob("logs/*/*/*.log"))]:
                with contextlib.suppress(OSError):
                    print(f"--- {log}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n")
            raise
        finally:
            if os.environ.get("KEEP") != "1":
                local.kill_everything()
                shutil.rmtree(place, ignore_errors=True)
        say(f"=== {name} ok")


if __name__ == "__main__":
    main()
