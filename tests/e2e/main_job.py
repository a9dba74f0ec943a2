"""The main job: a real Cassandra cluster, from `kubectl apply` to deletion and back, on a real Kubernetes; then what leaves: a node takes
no row with it, and a namespace no database before it has stopped.

Applies deploy/navigator.yaml and a sample unedited, as the README tells a user: it comes up with TLS and logins.
"""
import json
import re
import subprocess
import tarfile
import time

from bed import KUBECTL, ROOT, claim, get, kubectl, main, pids, run, say, step
from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from cluster import Cassandra
from cql import Session
from navigator import install
from plugin import Plugin
from raw import Watch

NS = "shop"
SHOP = Cassandra(NS, mode=None)
ROWS = 1_000


def the_image_holds_the_program_and_its_notices():
    with tarfile.open(ROOT / "bin/navigator-image.tar") as archive:
        described = json.load(archive.extractfile("manifest.json"))[0]
        labels = json.load(archive.extractfile(described["Config"]))["config"]["Labels"]
        layers = described["Layers"]
        names = []
        for layer in layers:
            member = archive.getmember(layer)
            if member.issym():
                member = archive.getmember(str((ROOT / layer).parent.joinpath(member.linkname).resolve().relative_to(ROOT)))
            with tarfile.open(fileobj=archive.extractfile(member)) as files:
                names += [entry.name for entry in files if not entry.isdir()]
    version = run(ROOT / "bin/navigator", "manifest", "--print-image").stdout.strip().rpartition(":")[2]
    said = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()}
    claim("its labels name version, revision, time, source and licence", said.get("version") == version
          and all(said.get(key) for key in ("revision", "created", "source", "licenses")), labels)
    claim("the image's archive holds the program and the notices, and nothing else",
          sorted(name.lstrip("./") for name in names) == ["licenses/THIRD-PARTY-NOTICES.txt", "navigator"], names)


def roles_are_unprivileged():
    for applet, container in (("apiserver", "apiserver"), ("controller", "controller")):
        pod = get("pods", "-n", "navigator", "-l", f"app.kubernetes.io/component={applet}")[0]
        spec = next(c for c in pod["spec"]["containers"] if c["name"] == container)
        context = {**pod["spec"].get("securityContext", {}), **spec["securityContext"]}
        claim(f"{applet} has a read-only root", context.get("readOnlyRootFilesystem") is True, context)
        uid = run("ps", "-o", "uid=", "-p", pids(applet)[0]).stdout.strip()
        claim(f"{applet} runs as uid 65532", uid == "65532", uid)


def pilots_are_unprivileged():
    uid = run("ps", "-o", "uid=", "-p", pids("pilot", NS)[0]).stdout.strip()
    claim("the pilot runs as uid 999, the database's", uid == "999", uid)
    pod = SHOP.pod()
    init = next(c for c in pod["spec"]["initContainers"] if c["name"] == "install-pilot")
    context = {**pod["spec"]["securityContext"], **init.get("securityContext", {})}
    claim("install runs as uid 65532 with a read-only root",
          context.get("readOnlyRootFilesystem") is True and context.get("runAsUser") == 65532, context)
    one = kubectl("exec", "-n", NS, SHOP.pod_name(), "-c", "cassandra", "--", "cat", "/proc/1/cmdline").split("\0")
    claim("the pilot is PID 1 of the database's container", one[:3] == ["/shared/navigator", "pilot", "cassandra"], one)


def is_secured():
    """The sample does not say a word about it."""
    claim("the cluster is made Secure", SHOP.spec()["security"] == {"mode": "Secure"}, SHOP.spec())
    SHOP.tells("Secured", "True", "Secured")
    for trust, login in ((None, None), (SHOP.credentials()[0], None), (SHOP.credentials()[0], ("cassandra", "cassandra"))):
        try:
            with Session(SHOP.address(), trust, login):
                served = True
        except (NoHostAvailable, OSError):
            served = False
        claim(f"a client is refused with {'TLS' if trust else 'a plain connection'} and {'cassandra as its login' if login else 'no login'}", not served)


def discovery():
    columns = kubectl("get", *SHOP.object)
    print(columns)
    claim("kubectl get prints useful columns",
          columns.split()[:7] == ["NAME", "READY", "HEALTH", "NODES", "VERSION", "PHASE", "AGE"], columns)
    for version in ("v1beta1", "v1alpha1"):
        text = kubectl("explain", "cassandracluster.spec.nodePools", f"--api-version=navigator.jetstack.io/{version}")
        claim(f"kubectl explain explains {version}", "replicas" in text and "FIELD" in text and "DESCRIPTION" in text, text)
    bad = kubectl("apply", "--validate=strict", "-n", NS, "-f", "-", check=False, stdin=json.dumps({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster", "metadata": {"name": "bad"},
        "spec": {"version": "5.0.6", "nodePool": []}}))
    claim("--validate=strict names an unknown field", bad.returncode != 0 and 'unknown field "spec.nodePool"' in bad.stderr, bad.stderr)


def logins_are_copied(nodes):
    """As many nodes keep the logins of the ring as it has, so that each can go."""
    def copies():
        with SHOP.client() as client:
            said = client.session.execute("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'system_auth'").one().replication
            return [count for name, count in said.items() if name != "class"] == [str(nodes)] or str(dict(said))
    SHOP.wait(f"the logins have {nodes} copies", copies)


def second_node_leaves():
    """Each row has one copy. The first node still has rows that it gave away when the second came; it forgets them before the second may leave, which
    then alone has its own."""
    with SHOP.client() as session:
        def alone():
            try:
                rows = session.rows_on(SHOP.address(1), range(ROWS))
            except DriverException as error:
                return f"the client could not learn of the ring: {error}"
            return rows if len(rows) > ROWS / 10 else f"{len(rows)} on {SHOP.address(1)} of {session.ring()}"
        held = SHOP.wait("some of them are the second node's", alone)
        say(f"    {len(held)} of {ROWS}")
    SHOP.scale(1)
    SHOP.says("CleanupPending")
    Plugin(NS).says(0, "cleanup", SHOP.name)
    SHOP.ready(nodes=1)
    SHOP.wait("its Pilot is gone", lambda: SHOP.pilot(1) is None or "still there")
    claims = SHOP.names("pvc")
    claim("its claim is gone", claims == [SHOP.claim_name(0)], claims)
    with SHOP.client() as session:
        claim("the node that stays is the only one", session.nodes() == [SHOP.address()], session.nodes())
    SHOP.has_rows(ROWS)


def process_runs():
    status = SHOP.pilot()["status"]
    return bool(status.get("process")) or json.dumps(status)


def namespace_goes():
    """Deletes the namespace; shows that its database was stopped and not killed, and that nothing waited without need."""
    log = subprocess.Popen([*KUBECTL, "logs", "-f", "-n", NS, SHOP.pod_name(), "-c", "cassandra"], stdout=subprocess.PIPE, text=True)
    watch = Watch(f"/api/v1/namespaces?watch=true&fieldSelector=metadata.name%3D{NS}")
    begun = time.monotonic()
    deleting = subprocess.Popen([*KUBECTL, "delete", "namespace", NS], stdout=subprocess.DEVNULL)
    # `kubectl logs` ends with the container, however long a busy machine needs for that.
    said = log.communicate(timeout=900)[0]
    ended = time.monotonic()
    claim("kubectl delete ends well", deleting.wait(timeout=900) == 0)
    gone = time.monotonic()
    claim("the namespace is gone", get("namespace", NS) is None)
    watch.stop()
    # With this condition Kubernetes looks again at once. By itself it does 5 s after it wrote its own conditions, which is enough where the
    # database stopped before; and then only after half of the grace period, 150 s.
    told = [entry for event in watch.events for entry in event["object"].get("status", {}).get("conditions", [])]
    claim("it waited for nothing else when the last database had stopped",
          gone - ended < 60 or any((entry["type"], entry["status"]) == ("NavigatorDatabasesStopped", "True") for entry in told),
          f"{gone - ended:.0f} s, {told}")
    say(f"    {ended - begun:.0f} s for the database, {gone - ended:.0f} s for the rest")
    stopped = [line for line in said.splitlines() if "Database stopped" in line]
    # 143 is Java's own end after SIGTERM; a killed process would say 137.
    claim("the database was stopped, not killed", any(re.search(r'code"?[=:] ?(0|143)\b', line) for line in stopped), said[-2000:])


def job():
    with step("the image"):
        the_image_holds_the_program_and_its_notices()
    with step("install"):
        install()
        roles_are_unprivileged()
    with step("kubectl apply of a sample, until Ready"):
        kubectl("create", "namespace", NS)
        SHOP.apply()
        SHOP.ready()
        is_secured()
    with step("what the user sees"):
        discovery()
        pilots_are_unprivileged()
    with step("kubectl navigator, as its user types it"):
        plugin = Plugin(NS)
        plugin.looks(SHOP.name, [SHOP.pod_name()])
        plugin.changes(SHOP.name, lambda: get(*SHOP.object))
    with step(f"write {ROWS} rows by CQL"):
        with SHOP.client() as session:
            session.write(ROWS)
            claim(f"{ROWS} rows are readable", session.read(ROWS) == ROWS)
            first_host_id = session.host_id()
    with step("kubectl patch to two nodes, until both are Ready"):
        SHOP.scale(2)
        SHOP.ready(nodes=2)
        print(kubectl("get", "cassandraclusters,pilots", "-n", NS, "-o", "wide"))
    with step("every row through the new node, and the copies of logins"):
        received = SHOP.pilot(1)["status"]["cassandra"].get("bootstrapBytesReceived", 0)
        claim("the new node's Pilot reports bytes received", received > 0, received)
        say(f"    {received} bytes received while joining")
        SHOP.has_rows(ROWS, through=1, said="are read at ONE through the new node")
        logins_are_copied(2)
    with step("delete a pod; it returns on its volume"):
        SHOP.replace_pod()
        with SHOP.client() as session:
            claim("it has its host id", session.host_id() == first_host_id)
        SHOP.has_rows(ROWS)
    with step("delete the cluster; nothing is left but its claims"):
        SHOP.delete()
        SHOP.is_gone(600)
        claims = SHOP.names("pvc")
        claim("the claims are left", claims == [SHOP.claim_name(0), SHOP.claim_name(1)], claims)
    with step("make it again on its two claims; read the rows"):
        # Two nodes, as there are claims: a cluster of one would first move the other node's rows and remove it.
        SHOP.apply(SHOP.manifest(2))
        SHOP.ready(nodes=2)
        SHOP.has_rows(ROWS, through=1)
    with step("kubectl patch to one node; the other decommissions itself and takes no row with it"):
        second_node_leaves()
    with step("kubectl delete namespace with a cluster in it"):
        namespace_goes()
    with step("the same while its database starts"):
        kubectl("create", "namespace", NS)
        SHOP.apply()
        SHOP.wait("Cassandra's process is there", process_runs)
        namespace_goes()


if __name__ == "__main__":
    main(job)
